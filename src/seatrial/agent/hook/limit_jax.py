"""--gpu-memory for JAX: the options with which XLA starts the GPUs, after the script's variables have been read.

XLA_PYTHON_CLIENT_MEM_FRACTION in the environment would not do: a script may set it itself, or the newer name beside it,
which JAX refuses, and two allocators know no limit. Growth (PREALLOCATE=false) stays as the script has it.
Source: https://docs.jax.dev/en/latest/gpu_memory_allocation.html, jaxlib/xla_client.py.
"""

import functools
import os
import sys
from typing import Any, Dict, List

from . import memory_limit

#: What JAX takes of a GPU unless told otherwise.
_DEFAULT_FRACTION = 0.75

#: Allocators that can be held to a fraction; the others take what they need.
_WITH_LIMIT = ("default", "bfc")

_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"


def begin(xla_client: Any) -> None:
    """Put the limit where jaxlib makes its clients: of a plug-in, and of the jaxlib with CUDA that came before."""
    try:
        if not hasattr(xla_client, "make_c_api_client") and not hasattr(xla_client, "make_gpu_client"):
            raise AttributeError("this jaxlib makes its clients elsewhere")
        if hasattr(xla_client, "make_c_api_client"):
            xla_client.make_c_api_client = _of_a_plugin(xla_client.make_c_api_client)
        if hasattr(xla_client, "make_gpu_client"):
            xla_client.make_gpu_client = _of_its_own(xla_client.make_gpu_client)
    except Exception as error:  # noqa: BLE001  another JAX than any that was tried
        memory_limit.not_held("jax", error)


def _of_a_plugin(make: Any) -> Any:
    @functools.wraps(make)
    def make_c_api_client(plugin_name: str, options: Any = None, *more: Any, **named: Any) -> Any:
        if plugin_name in ("cuda", "gpu"):
            options = limited(dict(options or {}))
        return make(plugin_name, options, *more, **named)

    return make_c_api_client


def _of_its_own(make: Any) -> Any:
    """It reads the variables itself."""

    @functools.wraps(make)
    def make_gpu_client(*arguments: Any, **named: Any) -> Any:
        told = {name: os.environ[name] for name in (*_VARIABLES, _ALLOCATOR) if name in os.environ}
        fraction = next((told[name] for name in _VARIABLES if told.get(name)), None)
        options = {"memory_fraction": fraction} if fraction else {}
        options = limited(dict(options, allocator=told.get(_ALLOCATOR, "default").lower()))
        if "memory_fraction" in options:
            os.environ[_VARIABLES[1]] = str(options["memory_fraction"])
            os.environ[_ALLOCATOR] = options["allocator"]
        try:
            return make(*arguments, **named)
        finally:
            for name in (_VARIABLES[1], _ALLOCATOR):
                os.environ.pop(name, None)
            os.environ.update(told)

    return make_gpu_client


def limited(options: Dict[str, Any]) -> Dict[str, Any]:
    """The options of a client, with no more than the limit of each GPU; the same without GPUs."""
    total_bytes = memory_limit.largest_gpu_bytes()
    if total_bytes is None:
        return options
    asked = float(options.get("memory_fraction") or _DEFAULT_FRACTION)
    options["memory_fraction"] = min(asked, memory_limit.LIMIT_BYTES / total_bytes)
    if options.get("allocator", "default") not in _WITH_LIMIT:
        options["allocator"] = "default"
    memory_limit.held("jax", peaks_bytes)
    return options


def peaks_bytes() -> List[int]:
    """What JAX had at most of each GPU of this process; [] where none was started."""
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    if jax is None or not getattr(bridge, "_backends", None):
        return []
    stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform in ("gpu", "cuda")]
    return [each.get("peak_bytes_in_use", 0) for each in stats]
