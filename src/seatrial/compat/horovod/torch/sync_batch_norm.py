"""Normalise over the batches of all ranks together."""

from typing import Any

import torch
import torch.nn.functional as functional

from .ops import Sum, allreduce
from .world import global_process_set, size


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """torch's layer on GPUs; on a CPU, where torch and Horovod have none, the same in plain arithmetic."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` (N, C, …)."""
        self._check_input_dim(input)
        if size() == 1 or not (self.training or not self.track_running_stats):
            return self._alone(input)
        if not input.is_cuda:
            return self._on_cpu(input)
        self.process_group = global_process_set.group(input)
        try:
            return super().forward(input)
        finally:
            self.process_group = None  # a model is pickled without it

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError("SyncBatchNorm takes (N, C, …), and was given %d dimensions" % input.dim())

    def _alone(self, input: torch.Tensor) -> torch.Tensor:
        of_batch = self.training or not self.track_running_stats
        momentum = self._count() if self.training else 0.0
        keeps = not of_batch or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if keeps else (None, None)
        return functional.batch_norm(input, mean, variance, self.weight, self.bias, of_batch, momentum, self.eps)

    def _count(self) -> float:
        """Count the batch; return the weight of its statistics."""
        if not self.track_running_stats or self.num_batches_tracked is None:
            return self.momentum or 0.0
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _on_cpu(self, input: torch.Tensor) -> torch.Tensor:
        momentum = self._count()
        others = [each for each in range(input.dim()) if each != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        rows = torch.tensor([float(input.numel() // input.shape[1])])
        count = allreduce(rows, op=Sum).item()
        mean = allreduce(input.sum(others), op=Sum) / count
        apart = input - mean.view(shape)
        variance = allreduce((apart * apart).sum(others), op=Sum) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), momentum)
                unbiased = variance * (count / max(1.0, count - 1))
                self.running_var.lerp_(unbiased.to(self.running_var), momentum)
        result: Any = apart * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result  # type: ignore[no-any-return]
