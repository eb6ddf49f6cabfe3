"""Report the version, the compilations and the backends of JAX, as its own monitoring has them.

Calls of compiled functions run in C++ without Python, so neither calls nor steps are counted.

Source: jax.monitoring, and the names in jax/_src/dispatch.py.
"""

import sys
from typing import Any, Dict

from . import recorder as recorders

_COMPILED = "/jax/core/compile/backend_compile_duration"


def jax_is_here(monitoring: Any) -> None:
    """Listen to ``monitoring``: the module jax.monitoring, or the one behind it."""
    recorder = recorders.shared()
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
