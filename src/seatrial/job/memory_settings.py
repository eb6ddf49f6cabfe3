"""Variables that tutorials call limits of GPU memory, and what they do."""

from __future__ import annotations

#: PyTorch's allocator reads each of these. Source: docs.pytorch.org/docs/stable/notes/cuda.html, "Optimizing memory
#: usage with PYTORCH_CUDA_ALLOC_CONF"; PYTORCH_ALLOC_CONF since 2.9.
_PYTORCH = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
#: Source: www.tensorflow.org/guide/gpu, "Limiting GPU memory growth".
_TENSORFLOW = "TF_FORCE_GPU_ALLOW_GROWTH"

LIMIT = "seatrial run … --gpu-memory 4GB"


def memory_note(name: str, value: str) -> str | None:
    """Return what a variable with this value does, where it may be taken for a limit; else None."""
    if name in _PYTORCH and "max_split_size_mb" in value:
        return "no memory limit: PyTorch does not split larger free blocks, against fragmentation"
    if name == _TENSORFLOW and value.strip().lower() in ("true", "1"):
        return (
            "no memory limit: TensorFlow takes memory as it needs it, instead of nearly all of the GPU's at its start"
        )
    return None
