"""Hold each framework's allocator to --gpu-memory, in every process of the target.

CUDA's own memory, its context and its libraries' workspaces (0.5 to 1 GB), is on top.

JAX gets the limit in the options with which XLA starts the GPUs, after the script's variables have been read. A
variable would not do: a script may set XLA_PYTHON_CLIENT_MEM_FRACTION itself, or the newer name too, which JAX
refuses, and two allocators have no limit. Growth (PREALLOCATE=false) stays as the script has it.
Source: https://docs.jax.dev/en/latest/gpu_memory_allocation.html, jaxlib/xla_client.py.

TensorFlow gets it in the ConfigProto with which its GPUs start. In tf.config, growth and a limit exclude each other
(tensorflow#38367), and a call of ours would make the script's fail; in the message both go together.
Source: tensorflow/core/protobuf/config.proto.
"""

import atexit
import ctypes
import functools
import importlib
import os
import sys
from typing import Any, Callable, Dict, List, Optional

from . import report
from .observe import wrap

LIMIT_BYTES = int(os.environ.get("SEATRIAL_GPU_MEMORY_BYTES") or 0)


def limit_torch(torch: Any) -> None:
    """Queue the limit for when the script starts CUDA: setting it now would start CUDA, and break later forks."""
    torch.cuda._lazy_call(lambda: set_torch_fractions(torch))


def set_torch_fractions(torch: Any) -> None:
    """Limit the allocator to a fraction of a device's memory, for a rank its own: this makes a context there."""
    rank = os.environ.get("LOCAL_RANK")
    for index in range(torch.cuda.device_count()) if rank is None else [int(rank)]:
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        with torch.cuda.device(index):  # setting the fraction changes the current device
            torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total_bytes), index)
    peak = "reserved_bytes.all.peak"
    held("torch", lambda: [torch.cuda.memory_stats(at).get(peak, 0) for at in range(torch.cuda.device_count())])


def largest_gpu_bytes() -> Optional[int]:
    """Return the memory of the largest GPU that this process sees; None without one.

    Frameworks take one fraction for all GPUs: the largest one's keeps the limit on each. The driver needs no context.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return max([_gpu_bytes(cuda, index) for index in range(count.value)] or [0]) or None


def _gpu_bytes(cuda: Any, index: int) -> int:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    failed = cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return 0 if failed else total.value


_HELD: Dict[str, bool] = {}


def held(framework: str, peaks_bytes: Callable[[], List[int]]) -> None:
    """Report that this process is held to the limit, and at its end the most bytes of each GPU that it allocated."""
    pid = os.getpid()
    if framework in _HELD:
        return
    _HELD[framework] = True
    fact: Dict[str, Any] = {"framework": framework, "pid": pid, "limit_bytes": LIMIT_BYTES}
    report.write("gpu_memory", fact)

    def report_peaks() -> None:
        if os.getpid() == pid:
            try:
                report.write("gpu_memory", dict(fact, peak_bytes=[int(peak) for peak in peaks_bytes()]))
            except Exception:  # noqa: BLE001  the script is at its end: nothing of ours may fail it
                pass

    atexit.register(report_peaks)


def not_held(framework: str, error: BaseException) -> None:
    """Report that the framework could not be given the limit."""
    reason = "%s: %s" % (type(error).__name__, error)
    report.write("gpu_memory", {"framework": framework, "pid": os.getpid(), "failed": reason[:300]})


#: Share of a GPU's memory that JAX takes by default.
_DEFAULT_FRACTION = 0.75

#: Allocators that accept a limit as a fraction; the others take what they need.
_WITH_LIMIT = ("default", "bfc")

_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"


def limit_jax(xla_client: Any) -> None:
    """Put the limit where jaxlib makes its clients: of a plug-in, and of the jaxlib with CUDA that came before."""
    try:
        if not hasattr(xla_client, "make_c_api_client") and not hasattr(xla_client, "make_gpu_client"):
            raise AttributeError("this jaxlib makes its clients elsewhere")
        wrap(xla_client, "make_c_api_client", _of_a_plugin)
        wrap(xla_client, "make_gpu_client", _of_its_own)
    except Exception as error:  # noqa: BLE001  another JAX than any that was tried
        not_held("jax", error)


def _of_a_plugin(make: Any) -> Any:
    def make_c_api_client(plugin_name: str, options: Any = None, *more: Any, **named: Any) -> Any:
        if plugin_name in ("cuda", "gpu"):
            options = limited_jax_options(dict(options or {}))
        return make(plugin_name, options, *more, **named)

    return make_c_api_client


def _of_its_own(make: Any) -> Any:
    """Pass the limit to a client that reads the variables itself."""

    def make_gpu_client(*arguments: Any, **named: Any) -> Any:
        own = {name: os.environ[name] for name in (*_VARIABLES, _ALLOCATOR) if name in os.environ}
        fraction = next((own[name] for name in _VARIABLES if own.get(name)), None)
        options = {"memory_fraction": fraction} if fraction else {}
        options = limited_jax_options(dict(options, allocator=own.get(_ALLOCATOR, "default").lower()))
        if "memory_fraction" in options:
            os.environ[_VARIABLES[1]] = str(options["memory_fraction"])
            os.environ[_ALLOCATOR] = options["allocator"]
        try:
            return make(*arguments, **named)
        finally:
            for name in (_VARIABLES[1], _ALLOCATOR):
                os.environ.pop(name, None)
            os.environ.update(own)

    return make_gpu_client


def limited_jax_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return a client's options with no more than the limit of each GPU; unchanged without GPUs."""
    total_bytes = largest_gpu_bytes()
    if total_bytes is None:
        return options
    wanted = float(options.get("memory_fraction") or _DEFAULT_FRACTION)
    options["memory_fraction"] = min(wanted, LIMIT_BYTES / total_bytes)
    if options.get("allocator", "default") not in _WITH_LIMIT:
        options["allocator"] = "default"
    held("jax", jax_peaks_bytes)
    return options


def jax_peaks_bytes() -> List[int]:
    """Return the most bytes that JAX had of each GPU of this process; [] if none was started."""
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    if jax is None or not getattr(bridge, "_backends", None):
        return []
    stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform in ("gpu", "cuda")]
    return [each.get("peak_bytes_in_use", 0) for each in stats]


#: Allocators that take what they need and know no limit.
_WITHOUT_LIMIT = "TF_GPU_ALLOCATOR"


def limit_tensorflow(tensorflow: Any) -> None:
    """Put the limit where a configuration leaves Python: eager contexts, sessions, servers, lists of devices."""
    try:
        context = importlib.import_module("tensorflow.python.eager.context")
        _limit_contexts(context)
        session = importlib.import_module("tensorflow.python.client.session")
        _limit_argument(session.BaseSession, "__init__", "config", 3)
        library = importlib.import_module("tensorflow.python.client.device_lib")
        _limit_argument(library, "list_local_devices", "session_config", 0)
        server = importlib.import_module("tensorflow.python.training.server_lib")
        _limit_argument(server.Server, "__init__", "config", 5)
    except Exception as error:  # noqa: BLE001  another TensorFlow than any that was tried
        not_held("tensorflow", error)


def _limit_contexts(context: Any) -> None:
    """Limit contexts, which all of TensorFlow 2 uses, and eager execution in TensorFlow 1's manner."""
    original = context.Context.config

    def config(self: Any) -> Any:
        return limited_tensorflow_config(original.fget(self))

    context.Context.config = property(functools.wraps(original.fget)(config), original.fset, original.fdel)


def _limit_argument(owner: Any, name: str, argument: str, position: int) -> None:
    """Limit a function's argument that is a ConfigProto, or None."""

    def around(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if len(arguments) > position:
                changed = list(arguments)
                changed[position] = limited_tensorflow_config(changed[position])
                return original(*changed, **named)
            named[argument] = limited_tensorflow_config(named.get(argument))
            return original(*arguments, **named)

        return call

    wrap(owner, name, around)


def limited_tensorflow_config(config: Any) -> Any:
    """Return a copy of a ConfigProto, or of the default, with at most the limit of each GPU; as is without GPUs."""
    total_bytes = largest_gpu_bytes()
    if total_bytes is None:
        return config
    made = importlib.import_module("tensorflow.core.protobuf.config_pb2").ConfigProto()
    if config is not None:
        if not isinstance(config, type(made)):  # TensorFlow reports that itself
            return config
        made.CopyFrom(config)
    _limit_options(made.gpu_options, total_bytes)
    os.environ.pop(_WITHOUT_LIMIT, None)
    held("tensorflow", tensorflow_peaks_bytes)
    return made


def _limit_options(options: Any, total_bytes: int) -> None:
    """Set a fraction of the GPU as the limit; the script's own parts of one share it in their proportions."""
    experimental = getattr(options, "experimental", None)
    parts = getattr(experimental, "virtual_devices", ())
    limit_mb = max(1, LIMIT_BYTES // 2**20)
    if len(parts):  # a fraction together with any, even without a limit, is refused
        for part in parts:
            wanted = list(part.memory_limit_mb) or [limit_mb]
            scale = min(1.0, limit_mb / sum(wanted))
            part.memory_limit_mb[:] = wanted if scale == 1.0 else [max(1, int(each * scale)) for each in wanted]
    else:
        fraction = options.per_process_gpu_memory_fraction or 1.0  # 0: all; above 1: the host's memory, too
        options.per_process_gpu_memory_fraction = min(fraction, LIMIT_BYTES / total_bytes)
    if "async" in options.allocator_type:
        options.allocator_type = ""
    if experimental is not None and getattr(experimental, "use_cuda_malloc_async", False):
        experimental.use_cuda_malloc_async = False


def tensorflow_peaks_bytes() -> List[int]:
    """Return the most bytes that TensorFlow had of each GPU; [] if none was started, or by sessions alone."""
    context = importlib.import_module("tensorflow.python.eager.context")
    current = context.context_safe()
    if not getattr(current, "_initialized", False) or not hasattr(current, "get_memory_info"):  # before 2.5
        return []
    peaks = {}
    for device in current.list_logical_devices("GPU"):
        peaks[device.name] = current.get_memory_info(device.name)["peak"]
    return list(peaks.values())
