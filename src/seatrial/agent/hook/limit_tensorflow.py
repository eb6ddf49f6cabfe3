"""--gpu-memory for TensorFlow: whatever the script sets, the limit goes into the options that its GPUs start with.

The script's own calls are left alone: growth and a limit exclude each other in tf.config (tensorflow#38367), and a call
of ours before it would make the script's fail. Below tf.config both are one message, where they do not: allow_growth
stays as the script has it, and what it may grow to is the limit. Source: tensorflow/core/protobuf/config.proto.
"""

import functools
import importlib
import os
from typing import Any, List

from . import memory_limit

#: Allocators that take what they need and know no limit.
_WITHOUT_LIMIT = "TF_GPU_ALLOCATOR"


def begin(tensorflow: Any) -> None:
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
        memory_limit.not_held("tensorflow", error)


def _limit_contexts(context: Any) -> None:
    """Everything of TensorFlow 2, and eager execution in TensorFlow 1's manner."""
    original = context.Context.config

    def config(self: Any) -> Any:
        return limited(original.fget(self))

    context.Context.config = property(functools.wraps(original.fget)(config), original.fset, original.fdel)


def _limit_argument(owner: Any, name: str, argument: str, position: int) -> None:
    """Limit a function's argument that is a ConfigProto, or None."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > position:
            changed = list(arguments)
            changed[position] = limited(changed[position])
            return original(*changed, **named)
        named[argument] = limited(named.get(argument))
        return original(*arguments, **named)

    setattr(owner, name, call)


def limited(config: Any) -> Any:
    """A copy of a ConfigProto, or of the default, with no more than the limit of each GPU; without GPUs, as it is."""
    total_bytes = memory_limit.largest_gpu_bytes()
    if total_bytes is None:
        return config
    made = importlib.import_module("tensorflow.core.protobuf.config_pb2").ConfigProto()
    if config is not None:
        if not isinstance(config, type(made)):  # TensorFlow will say so itself
            return config
        made.CopyFrom(config)
    _limit_options(made.gpu_options, total_bytes)
    os.environ.pop(_WITHOUT_LIMIT, None)
    memory_limit.held("tensorflow", peaks_bytes)
    return made


def _limit_options(options: Any, total_bytes: int) -> None:
    """Parts of a GPU that the script made share the limit in their proportions; else it is a fraction of the GPU."""
    experimental = getattr(options, "experimental", None)
    parts = getattr(experimental, "virtual_devices", ())
    limit_mb = max(1, memory_limit.LIMIT_BYTES // 2**20)
    if len(parts):  # a fraction beside any, even without a limit, is refused
        for part in parts:
            asked = list(part.memory_limit_mb) or [limit_mb]
            scale = min(1.0, limit_mb / sum(asked))
            part.memory_limit_mb[:] = asked if scale == 1.0 else [max(1, int(each * scale)) for each in asked]
    else:
        asked_fraction = options.per_process_gpu_memory_fraction or 1.0  # 0: all; above 1: the host's memory, too
        options.per_process_gpu_memory_fraction = min(asked_fraction, memory_limit.LIMIT_BYTES / total_bytes)
    if "async" in options.allocator_type:
        options.allocator_type = ""
    if experimental is not None and getattr(experimental, "use_cuda_malloc_async", False):
        experimental.use_cuda_malloc_async = False


def peaks_bytes() -> List[int]:
    """What TensorFlow had at most of each GPU; [] where none was started, or by sessions alone."""
    context = importlib.import_module("tensorflow.python.eager.context")
    current = context.context_safe()
    if current is None or not getattr(current, "_initialized", False):
        return []
    peaks = {}
    for device in current.list_logical_devices("GPU"):
        peaks[device.name] = current.get_memory_info(device.name)["peak"]
    return list(peaks.values())
