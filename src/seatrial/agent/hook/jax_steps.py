"""Report the version, the compilations and the backends of JAX, and join its processes on several nodes.

Calls of compiled functions run in C++ without Python, so neither calls nor steps are counted.
Source: jax.monitoring; the names in jax/_src/dispatch.py; jax/_src/distributed.py of 0.10.2.
"""

import inspect
import os
import sys
from typing import Any, Dict

from . import steps
from .observe import wrap

COUNT, NUMBER = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def join_jax(distributed: Any) -> None:
    """Fill in the count and number of processes if a call leaves them open."""
    wrap(distributed.State, "initialize", _with_processes)


def _with_processes(original: Any) -> Any:
    signature = inspect.signature(original)

    def initialize(*arguments: Any, **named: Any) -> Any:
        count, number = os.environ.get(COUNT, ""), os.environ.get(NUMBER, "")
        if not (count.isdigit() and number.isdigit()):
            return original(*arguments, **named)
        call = signature.bind(*arguments, **named)
        given = call.arguments
        if given.get("num_processes") is None and given.get("process_id") is None:
            given.update(num_processes=int(count), process_id=int(number))
            # Slurm's variables would give this process the first GPU alone.
            if "cluster_detection_method" in signature.parameters and given.get("cluster_detection_method") is None:
                given["cluster_detection_method"] = "deactivate"
        return original(*call.args, **call.kwargs)

    return initialize


_COMPILED = "/jax/core/compile/backend_compile_duration"


def jax_is_here(monitoring: Any) -> None:
    """Listen to ``monitoring``: the module jax.monitoring, or the one behind it."""
    recorder = steps.shared()
    seen: Dict[str, Any] = {"compiled": 0, "seconds": 0.0, "backends": []}

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == _COMPILED:
            seen["compiled"] += 1
            seen["seconds"] += seconds
            seen["backends"] = sorted(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or ())

    def facts() -> None:
        jax = sys.modules.get("jax")
        known: Dict[str, Any] = {"jax": str(getattr(jax, "__version__", ""))}
        known.update(jax_compiled=seen["compiled"], jax_compile_s=round(seen["seconds"], 3))
        if seen["backends"]:
            known["jax_backends"] = seen["backends"]
        if "framework" not in recorder.facts:
            known.update(framework="jax", version=known["jax"])
        recorder.facts.update(known)

    try:
        monitoring.register_event_duration_secs_listener(listen)
        recorder.at_ends.append(facts)
    except Exception as error:  # noqa: BLE001  never the script's trouble
        recorder.stop(error)
