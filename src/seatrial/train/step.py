"""One optimizer step: load, forward, backward, reduce, clip, update, count. Device operations only: it can be captured.

The host never waits for the device here. The loss of every step is kept on the device and read once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from seatrial.train.data.shards import Shape, Span
from seatrial.train.distributed import GradientReducer, Ranks
from seatrial.train.errors import InputError
from seatrial.train.oom import MicroBatch
from seatrial.train.optim.optimizer import Optimizer
from seatrial.train.optim.schedules import Schedule, table
from seatrial.train.precision import Precision
from seatrial.train.saving.rng import rng_state, set_rng_state

#: (model, inputs, targets) → mean loss over the rows.
Loss = Callable[[nn.Module, Any, Tensor], Tensor]


class Source(Protocol):
    """Where training batches come from: ResidentImages, StreamedImages, text.Messages, or a stranger's own.

    Attributes:
        spans: this rank's steps of an epoch, in order. ``start`` may reorder them, never change their number.
        resident: ``before_step`` does nothing, so several steps can be queued at once.
    """

    spans: list[Span]
    resident: bool

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch that begins at ``first_step``."""

    def before_step(self) -> None:
        """Host work before each step."""

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Any, Tensor]:
        """Some rows of the batch of step ``position``: inputs and targets. Device operations only."""


class Step:
    """One optimizer step over the batch that ``position`` points at.

    Args:
        schedule: of the learning rate over ``epochs``, or one for each parameter group; None keeps it constant.
        data_parallel: split each batch over all GPUs of this process by nn.DataParallel: slower than a rank per GPU.
        accumulation: micro-batches a step is made of.
        clip_norm: the gradient's norm is limited to this.
    """

    # Keywords, each with its default, read better at the call than a dataclass of options around them.
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer | torch.optim.Optimizer,
        source: Source,
        *,
        ranks: Ranks,
        precision: Precision,
        schedule: Schedule | list[Schedule] | None = None,
        epochs: int = 1,
        accumulation: int = 1,
        clip_norm: float | None = None,
        data_parallel: bool = False,
    ) -> None:
        self.model, self.optimizer, self.source = model, optimizer, source
        self.device, self.ranks, self.precision = ranks.device, ranks, precision
        self.scaler = precision.scaler()
        self.reducer = GradientReducer(model, ranks, precision.dtype)
        largest = max(span.shape.rows for span in source.spans)
        self.micro_batch = MicroBatch(-(-largest // accumulation))
        self._loss, self._clip_norm = loss, clip_norm
        self._called: nn.Module = nn.DataParallel(model) if data_parallel else model
        self._rates = [group["lr"] for group in optimizer.param_groups]
        if schedule is not None and not all(isinstance(rate, Tensor) for rate in self._rates):
            raise InputError(
                "a schedule needs learning rates that are tensors, as seatrial.train.optim.optimizer creates them"
            )
        self._base_rates = [torch.as_tensor(rate).clone() for rate in self._rates]
        self._scheduled: list[tuple[Tensor, Tensor]] = []
        if schedule is not None:
            schedules = schedule if isinstance(schedule, list) else [schedule] * len(self._rates)
            self._scheduled = self._tables(table(schedules, epochs * len(source.spans), self.device))
        self._forward: Callable[[Shape, int, int], Tensor] = self._micro_loss
        self._finish: Callable[[Tensor], None] = self._count
        #: Steps done in this epoch, and before it: both on the device, for a captured step to read.
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.losses = torch.zeros(len(source.spans), device=self.device)
        self.steps_before = torch.zeros(1, dtype=torch.long, device=self.device)

    def start_epoch(self, steps_before: int, first_step: int) -> None:
        """Point at ``first_step`` of an epoch that follows ``steps_before`` steps."""
        self.steps_before.fill_(steps_before)
        self.position.fill_(first_step)
        self.losses.zero_()

    def run_fixed(self, shape: Shape) -> None:
        """One step with the micro-batch as it is; the last micro-batch overlaps with the reduction of gradients."""
        self._update(self._gradients(shape, overlap=True))

    def run_recovering(self, shape: Shape) -> None:
        """One step that halves the micro-batch and starts over when any rank runs out of memory.

        Raises:
            TrainError: out of memory with micro-batches of one row.
        """
        while True:
            generators = rng_state()
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            failed, total = False, None
            try:
                total = self._gradients(shape, overlap=False)
            except torch.OutOfMemoryError:
                failed = True
            if not self.ranks.any(failed):
                assert total is not None
                return self._update(total)
            self.reducer.clear()
            self.micro_batch.halve(self.device, self.ranks.first)
            set_rng_state(generators)
            for buffer, saved in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(saved)

    def compile(self) -> None:
        """Compile loading, forward and (through autograd) backward into few kernels."""
        self._forward = torch.compile(self._micro_loss, dynamic=False)
        self._finish = torch.compile(self._count, dynamic=False)

    def uncompile(self) -> None:
        """Go back to torch's own kernels."""
        self._forward, self._finish = self._micro_loss, self._count

    def state(self) -> dict[str, Any]:
        """Everything a step changes."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "place": [self.position, self.losses],
        }

    def restore(self, state: dict[str, Any], *, forget_optimizer: bool) -> None:
        """Put a snapshot of ``state`` back in place: a captured graph goes on using the same memory.

        Args:
            forget_optimizer: the optimizer had no state yet: what it has now becomes zero, as when it is fresh.
        """
        with torch.no_grad():
            for own, saved in zip(self.model.state_dict().values(), state["model"].values(), strict=True):
                own.copy_(saved)
            own_states = self.optimizer.state_dict()["state"]
            for key, slots in own_states.items():
                for name, value in slots.items():
                    if isinstance(value, Tensor):
                        value.zero_() if forget_optimizer else value.copy_(state["optimizer"]["state"][key][name])
            for rate, group in zip(self._rates, state["optimizer"]["param_groups"], strict=True):
                if isinstance(rate, Tensor):
                    rate.copy_(group["lr"])
            for own, saved in zip([self.position, self.losses], state["place"], strict=True):
                own.copy_(saved)
        self.reducer.clear()
        self._restore_scaler(state["scaler"])

    def load_optimizer(self, saved: dict[str, Any]) -> None:
        """The optimizer's state of a checkpoint; learning rates stay the ones this run was given."""
        self.optimizer.load_state_dict(saved)
        for group, rate, base in zip(self.optimizer.param_groups, self._rates, self._base_rates, strict=True):
            if isinstance(rate, Tensor):
                rate.copy_(base)
            group["lr"] = rate

    def _tables(self, factors_GS: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each learning rate and its values at every step, [S, R]; once where groups share one.

        R: 1, or the trials of a fused training.
        """
        tables = {}
        for rate, base, factors_S in zip(self._rates, self._base_rates, factors_GS, strict=True):
            tables[id(rate)] = (rate, base.view(1, -1) * factors_S[:, None])
        return list(tables.values())

    def _restore_scaler(self, saved: dict[str, Any]) -> None:
        scale = self.scaler._scale if saved else None
        if scale is not None:  # load_state_dict would replace the tensors that a graph holds
            scale.fill_(saved["scale"])
            assert self.scaler._growth_tracker is not None
            self.scaler._growth_tracker.fill_(saved["_growth_tracker"])

    def _gradients(self, shape: Shape, *, overlap: bool) -> Tensor:
        """Gradients of the mean loss over all ranks' rows; returns this rank's mean loss, [1]."""
        self.reducer.clear()
        total: Tensor | None = None
        for first in range(0, shape.rows, self.micro_batch.rows):
            count = min(self.micro_batch.rows, shape.rows - first)
            self.reducer.overlap = overlap and first + count == shape.rows
            loss = self._forward(shape, first, count)
            if count != shape.rows:
                loss = loss * (count / shape.rows)
            total = loss.detach() if total is None else total + loss.detach()
            if shape.share != 1.0:
                loss = loss * shape.share
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return torch.zeros(1, device=self.device) if total is None else total.view(1)

    def _micro_loss(self, shape: Shape, first: int, count: int) -> Tensor:
        inputs, targets = self.source.load(self.position, shape, first, count)
        with self.precision.autocast():
            return self._loss(self._called, inputs, targets)

    def _update(self, loss: Tensor) -> None:
        self.reducer.reduce()
        if self._clip_norm is not None:
            self.scaler.unscale_(cast(torch.optim.Optimizer, self.optimizer))
            nn.utils.clip_grad_norm_(self.reducer.parameters, self._clip_norm)
        if self._scheduled:
            step = self.steps_before + self.position
            for rate, rates_SR in self._scheduled:
                torch.index_select(rates_SR, 0, step, out=rate.view(1, -1))
        self.scaler.step(cast(torch.optim.Optimizer, self.optimizer))
        self.scaler.update()
        self._finish(loss)

    def _count(self, loss: Tensor) -> None:
        self.losses.index_copy_(0, self.position, loss.float())
        self.position.add_(1)
