"""--gpu-memory: each framework's allocator gets the limit, in every process of the target.

The CUDA context's own memory (about 0.5 GB) is on top.
"""

import os
from typing import Any

LIMIT_BYTES = int(os.environ.get("SEATRIAL_GPU_MEMORY_BYTES") or 0)


def limit_torch(torch: Any) -> None:
    """Queue the limit for when the script starts CUDA: setting it now would start CUDA, and break later forks."""
    torch.cuda._lazy_call(lambda: set_torch_fractions(torch))


def set_torch_fractions(torch: Any) -> None:
    """The allocator takes a fraction of each device's memory. A rank touches its own device only: setting it makes a
    context there."""
    rank = os.environ.get("LOCAL_RANK")
    for index in range(torch.cuda.device_count()) if rank is None else [int(rank)]:
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        with torch.cuda.device(index):  # setting the fraction changes the current device
            torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total_bytes), index)


def limit_tensorflow(tensorflow: Any) -> None:
    """Source: https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth"""
    config = tensorflow.config
    for gpu in config.list_physical_devices("GPU"):
        limit = config.LogicalDeviceConfiguration(memory_limit=LIMIT_BYTES // 2**20)
        config.set_logical_device_configuration(gpu, [limit])
