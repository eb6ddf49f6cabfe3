"""Changes of scripts whose loop is a library's: what its own settings call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst

from seatrial.tuning.arguments import CannotBeGivenError, with_arguments
from seatrial.tuning.edits import Edits
from seatrial.tuning.source import last_name

#: Key → (argument, value), {} for the key's own value. Source: huggingface.co/docs/transformers, TrainingArguments.
_TRANSFORMERS = {
    "workers": {"dataloader_num_workers": "{}"},
    "persistent_workers": {"dataloader_persistent_workers": "True"},
    "pin_memory": {"dataloader_pin_memory": "True"},
    "prefetch_factor": {"dataloader_prefetch_factor": "{}"},
    "batch_size": {"per_device_train_batch_size": "{}"},
    "precision": {"bf16": "True"},
    "tf32": {"tf32": "True"},
    "fused_optimizer": {"optim": '"adamw_torch_fused"'},
    "compile": {"torch_compile": "True", "torch_compile_mode": '"{}"'},
    "bucket_cap_mb": {"ddp_bucket_cap_mb": "{}"},
}


def setting(key: str, value: Any) -> Mapping[str, str]:
    """TrainingArguments that do the change; empty where there are none."""
    made = {name: text.format(value) for name, text in _TRANSFORMERS.get(key, {}).items()}
    return {name: text for name, text in made.items() if text != '"default"'}


def edit_training_arguments(edits: Edits, key: str, value: Any) -> str | None:
    """Give the file's ``TrainingArguments(…)`` the change's argument. Returns why not."""
    settings = setting(key, value)
    calls = [call for call in edits.source.of(cst.Call) if last_name(call.func).endswith("TrainingArguments")]
    if not settings:
        return "TrainingArguments has no argument for it"
    if len(calls) != 1:
        return "TrainingArguments is made elsewhere"
    try:
        with_arguments(calls[0], settings)
    except CannotBeGivenError as error:
        return str(error)
    edits.call(calls[0], lambda made: with_arguments(made, settings))
    return None
