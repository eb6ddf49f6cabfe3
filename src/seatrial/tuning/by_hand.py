"""What to write by hand where no edit is made, in a sentence a key."""

from __future__ import annotations

from typing import Any

_WORDS = {
    "workers": "num_workers={}",
    "persistent_workers": "persistent_workers=True",
    "pin_memory": "pin_memory=True",
    "prefetch_factor": "prefetch_factor={}",
    "batch_size": "batch_size={}",
    "non_blocking": "non_blocking=True",
    "fused_optimizer": "fused=True",
    "bucket_cap_mb": "bucket_cap_mb={}",
    "gradient_as_bucket_view": "gradient_as_bucket_view=True",
    "channels_last": "channels_last",
    "compile": "torch.compile",
    "tf32": "TF32",
    "cudnn_benchmark": "cudnn.benchmark",
    "precision": "bf16 autocast",
}

_BY_HAND = {
    "workers": "Give the training DataLoader num_workers={}.",
    "persistent_workers": "Give the training DataLoader persistent_workers=True.",
    "pin_memory": "Give the training DataLoader pin_memory=True.",
    "prefetch_factor": "Give the training DataLoader prefetch_factor={}.",
    "batch_size": "Set the batch size to {}.",
    "non_blocking": "Copy batches with .to(device, non_blocking=True).",
    "fused_optimizer": "Give the optimizer fused=True.",
    "bucket_cap_mb": "Give DistributedDataParallel bucket_cap_mb={}.",
    "gradient_as_bucket_view": "Give DistributedDataParallel gradient_as_bucket_view=True.",
    "channels_last": "Behind the model's .to(device), write model = model.to(memory_format=torch.channels_last).",
    "compile": "Behind the model's .to(device), write model.compile({}).",
    "tf32": 'Write torch.set_float32_matmul_precision("high") behind the imports.',
    "cudnn_benchmark": "Write torch.backends.cudnn.benchmark = True behind the imports.",
    "precision": 'Call the model inside `with torch.autocast("cuda", dtype=torch.bfloat16):`.',
}


def in_words(key: str, value: Any) -> str:
    """As it stands in code."""
    return _WORDS.get(key, key).format(value)


def by_hand(key: str, value: Any) -> str:
    """What to do, in a sentence."""
    if key == "compile":
        value = "" if value == "default" else f'mode="{value}"'
    return _BY_HAND.get(key, "").format(value)
