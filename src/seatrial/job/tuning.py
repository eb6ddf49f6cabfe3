"""Tuning: what `seatrial tune` is asked for, and the changes that ``[tune]`` of a project's file keeps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from seatrial.job.keys import Table

#: Words of ``--only``. Source: NAMES in agent/tune/candidates.py; a test compares.
NAMES = (
    "workers",
    "pin_memory",
    "tf32",
    "cudnn_benchmark",
    "bf16",
    "channels_last",
    "fused_optimizer",
    "compile",
    "buckets",
)

#: Key of ``[tune]`` → the sentence that makes the change in the script itself.
BY_HAND = {
    "workers": "Give the training DataLoader num_workers={}.",
    "persistent_workers": "Give the training DataLoader persistent_workers=True.",
    "pin_memory": "Give the training DataLoader pin_memory=True.",
    "prefetch_factor": "Give the training DataLoader prefetch_factor={}.",
    "batch_size": "Set the batch size to {}.",
    "non_blocking": "Copy batches with .to(device, non_blocking=True).",
    "fused_optimizer": "Give the optimizer fused=True.",
    "bucket_cap_mb": "Give DistributedDataParallel bucket_cap_mb={}.",
    "gradient_as_bucket_view": "Give DistributedDataParallel gradient_as_bucket_view=True.",
    "channels_last": "After the model's .to(device), write model = model.to(memory_format=torch.channels_last).",
    "compile": 'After the model\'s .to(device), write model.compile(mode="{}").',
    "tf32": 'After the imports, write torch.set_float32_matmul_precision("high").',
    "cudnn_benchmark": "After the imports, write torch.backends.cudnn.benchmark = True.",
    "precision": 'Call the model inside `with torch.autocast("cuda", dtype=torch.bfloat16):`.',
}


class Changes(Table):
    """Changes that are made to a torch script from outside. Source: the table of docs/decisions.md, 0037."""

    script: str | None = Field(default=None, description="The one script that the changes are for; default: any.")
    workers: Annotated[int, Field(ge=0, le=512)] | None = Field(default=None, description="DataLoader's num_workers.")
    persistent_workers: StrictBool | None = Field(default=None, description="DataLoader's persistent_workers.")
    pin_memory: StrictBool | None = Field(default=None, description="DataLoader's pin_memory.")
    prefetch_factor: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="DataLoader's prefetch_factor."
    )
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="DataLoader's batch_size; changes what is trained."
    )
    non_blocking: StrictBool | None = Field(default=None, description="Copies of pinned tensors do not wait.")
    tf32: StrictBool | None = Field(default=None, description="TF32 for float32 matmuls and convolutions.")
    cudnn_benchmark: StrictBool | None = Field(default=None, description="torch.backends.cudnn.benchmark.")
    precision: Literal["bf16"] | None = Field(default=None, description="Autocast around the model's forward pass.")
    channels_last: StrictBool | None = Field(default=None, description="Memory format of model and images.")
    fused_optimizer: StrictBool | None = Field(default=None, description="fused=True where the optimizer knows it.")
    compile: Literal["default", "reduce-overhead"] | None = Field(
        default=None, description="torch.compile of the model, in this mode."
    )
    bucket_cap_mb: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="DistributedDataParallel's bucket_cap_mb."
    )
    gradient_as_bucket_view: StrictBool | None = Field(
        default=None, description="DistributedDataParallel's gradient_as_bucket_view."
    )

    def set_ones(self) -> dict[str, Any]:
        """Those that are set, as the hook reads them."""
        return {key: value for key, value in self.model_dump(exclude={"script"}).items() if value not in (None, False)}

    @property
    def words(self) -> str:
        """``compile=default, workers=8``."""
        return changes_in_words(self.set_ones())


def changes_in_words(changes: dict[str, Any]) -> str:
    """As the driver says them (agent/tune/candidates.py)."""
    return ", ".join(key if value is True else f"{key}={value}" for key, value in sorted(changes.items()))


class Tuning(Table):
    """What a tune is asked for.

    Attributes:
        steps, seconds: measured in each trial, at most. budget_s: for all trials.
        only: NAMES that are tried; () for all. fit: batch sizes in place of changes.
    """

    steps: int = 60
    seconds: float = 20.0
    budget_s: float = 180.0
    only: tuple[str, ...] = ()
    fit: bool = False
