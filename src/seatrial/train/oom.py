"""Recovery from out-of-memory errors: the micro-batch is halved, accumulation doubles, the batch stays what it was."""

from __future__ import annotations

import gc

import torch

from seatrial.train.errors import TrainError


class MicroBatch:
    """Rows that go through the network at once; a batch is made of as many as it takes."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def halve(self, device: torch.device, announce: bool) -> None:
        """Take half as many rows from now on and give the memory of the failed attempt back.

        Raises:
            TrainError: it was one row already.
        """
        if self.rows == 1:
            raise TrainError(
                "out of memory even with micro-batches of 1 row",
                fix="a smaller model, --precision bf16, or more free memory: nvidia-smi shows what else uses the GPU",
            )
        old, self.rows = self.rows, -(-self.rows // 2)
        gc.collect()  # the traceback of the failed attempt may still hold its activations
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if announce:
            print(f"out of memory with micro-batches of {old} rows: continuing with {self.rows}", flush=True)
