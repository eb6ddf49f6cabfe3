"""Run an optimizer step; after an out-of-memory error halve the micro-batch and keep the batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from seatrial.train.autocast_weights import EarlyError
from seatrial.train.checks import Loss, check_numbers, check_parts, trained_on
from seatrial.train.compiled_blocks import CompiledBlocks
from seatrial.train.data.order import Shape, Source
from seatrial.train.distributed import GradientReducer, Gradients, Ranks, here
from seatrial.train.errors import InputError
from seatrial.train.memory import MicroBatch
from seatrial.train.optim import torch_optimizers
from seatrial.train.optim.optimizer import Average, Optimizer
from seatrial.train.optim.schedules import Schedule, by_group, table
from seatrial.train.precision import Precision, choose_precision
from seatrial.train.saving.arena import map_tensors
from seatrial.train.saving.rng import rng_state, set_rng_state

if TYPE_CHECKING:
    from seatrial.train.module_patches import ModuleKernels


class Step:
    """One optimizer step over the batch that ``position`` points at.

    Args:
        loss: gets the model and the batch, a tuple's parts as arguments, a dictionary whole; gives a number, or a
            dictionary with ``loss`` in it, whose other numbers are logged.
        source: what ``batches`` gives.
        model: any; moved to the ranks' device where it is elsewhere, convolutions there with channels last.
        optimizer: of this library, of torch.optim or like it.
        ranks: None: those that torchrun started, or this process alone.
        precision: or its name: auto, fp32, tf32, bf16, fp16.
        schedule: of the learning rate over ``epochs``, or one for each parameter group, or a scheduler of torch;
            None keeps it constant.
        scheduled_by: ``step`` or ``epoch``: what the schedule counts.
        data_parallel: split each batch over all GPUs of this process by nn.DataParallel: slower than a rank per GPU.
        accumulation: micro-batches a step is made of.
        clip_norm: the gradient's norm is limited to this.
        frozen_after: parameters that stay as they are after so many epochs, and need no gradients then.
        kernels: on a GPU, what this library has kernels for inside of the model runs by them; a line names what does,
            and what not. cuDNN measures its ways of each convolution, but for fp32.
        gradients: who clears, averages and clips them; None: GradientReducer, for those that autograd makes.
        average_decay: also keep a moving average of the weights, ``average.model``, which changes by 1 - this a step.
    """

    # Keywords, each with its default, read better at the call than a dataclass of options around them.
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer | torch.optim.Optimizer,
        source: Source,
        *,
        ranks: Ranks | None = None,
        precision: Precision | str = "auto",
        schedule: Schedule | list[Schedule] | torch.optim.lr_scheduler.LRScheduler | None = None,
        scheduled_by: str = "step",
        epochs: int = 1,
        accumulation: int = 1,
        clip_norm: float | None = None,
        average_decay: float | None = None,
        gradients: Gradients | None = None,
        kernels: bool = False,
        data_parallel: bool = False,
        frozen_after: list[tuple[Tensor, int]] | None = None,
    ) -> None:
        if kernels and data_parallel:
            raise InputError("kernels run in one process for each GPU, not in nn.DataParallel", fix="torchrun")
        ranks = ranks or here()
        if isinstance(precision, str):
            precision = choose_precision(precision, ranks.device)
            precision.apply()
        check_parts(model, loss, optimizer, source, world=ranks.world)
        check_numbers(
            accumulation=accumulation, clip_norm=clip_norm, average_decay=average_decay, scheduled_by=scheduled_by
        )
        place(model, ranks.device)
        torch_optimizers.refuse(optimizer, model, some=gradients is not None)
        torch_optimizers.prepare(optimizer, ranks.device)
        self.model, self.optimizer, self.source, self.epochs = model, optimizer, source, epochs
        self.device, self.ranks, self.precision = ranks.device, ranks, precision
        self.scaler = precision.scaler()
        self.reducer = gradients or GradientReducer(model, ranks, precision.dtype)
        largest = max(span.shape.rows for span in source.spans)
        self.micro_batch = MicroBatch(-(-largest // accumulation))
        self.loss, self._clip_norm = loss, clip_norm
        self._called: nn.Module = nn.DataParallel(model) if data_parallel else model
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._base_rates = [torch.as_tensor(rate).clone() for rate in self._rates]
        kept = torch_optimizers.KERNEL_OPTIONS
        self._kernel_options = [{key: each[key] for key in kept if key in each} for each in optimizer.param_groups]
        self._scheduled: list[tuple[Tensor, Tensor]] = []
        #: Options of each group that the schedule changes and the host keeps: name → its values at every step.
        self.host_options: list[dict[str, list[Any]]] = []
        self.scheduled = schedule is not None
        if schedule is not None:
            self._schedule(schedule, epochs * len(source.spans), 1 if scheduled_by == "step" else len(source.spans))
        #: The moving average of the weights, or None.
        self.average = Average(model, average_decay) if average_decay is not None else None
        self._forward: Callable[[Shape, int, int], Any] = self._micro_loss
        self._finish: Callable[[Tensor], None] = self._count
        self._blocks: CompiledBlocks | None = None
        #: True while a step is tried out before it is captured: its changes are undone.
        self.rehearsing = False
        self._module_kernels = module_kernels(model, precision, ranks, self.reducer) if kernels else None
        self._frozen_after = frozen_after or []
        #: The numbers of epochs after which parameters are frozen.
        self._ends = sorted({epochs for _, epochs in self._frozen_after})
        #: The number of freezings, and of those that are over.
        self.phases, self.phase = len(self._ends), 0
        #: Steps done in this epoch, and before it: both on the device, for a captured step to read.
        self.position, self.steps_before = (torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(2))
        self.losses = torch.zeros(len(source.spans), device=self.device)
        #: Other numbers of this rank's loss: name → [steps of an epoch].
        self.parts: dict[str, Tensor] = {}

    def start_epoch(self, steps_before: int, first_step: int) -> None:
        """Point at ``first_step`` of an epoch that follows ``steps_before`` steps."""
        self.enter_phase(sum(steps_before >= epochs * len(self.source.spans) for epochs in self._ends))
        self.steps_before.fill_(steps_before)
        self.position.fill_(first_step)
        for values in (self.losses, *self.parts.values()):
            values.zero_()

    def point_at(self, shape: Shape) -> None:
        """Point at the epoch's first step of ``shape``, so that a step tried out reads a batch of its own size.

        A batch's index tables name rows within that batch. Kernels that run with the sizes of a smaller shape would
        follow them beyond their arrays. Shapes of other epochs have as many rows as this epoch's, and no such tables.
        """
        spans = self.source.spans
        same = [place for place, span in enumerate(spans) if span.shape == shape]
        as_many = (place for place, span in enumerate(spans) if span.shape.rows == shape.rows)
        self.position.fill_(same[0] if same else next(as_many))

    def enter_phase(self, phase: int) -> None:
        """Freeze what is frozen after so many of the times at which parameters are."""
        self.phase = phase
        for parameter, epochs in self._frozen_after:
            parameter.requires_grad_(self._ends.index(epochs) >= phase)

    def epochs_of(self, phase: int, epochs: int) -> range:
        """Return the epochs of a training, from 1 on, in which ``phase`` of these times are over."""
        return range([0, *self._ends][phase] + 1, min([*self._ends, epochs][phase], epochs) + 1)

    def run_fixed(self, shape: Shape) -> None:
        """Run a step with the micro-batch as it is; the last one overlaps with the reduction of gradients."""
        self._update(self._gradients(shape, overlap=True))

    def run_recovering(self, shape: Shape) -> None:
        """Run a step; halve the micro-batch and start over if a rank lacks memory. Raises TrainError at one row."""
        while True:
            generators = rng_state()
            buffers = [buffer.clone() for buffer in self.model.buffers()]
            failed, total, early = False, None, None
            try:
                total = self._gradients(shape, overlap=False)
            except torch.OutOfMemoryError:
                failed = True
            except EarlyError as error:  # of the layers, which all ranks have alike
                early = error
            if not self.reducer.agree(failed):
                if early is not None:
                    raise early
                assert total is not None
                return self._update(total)
            self.reducer.clear()
            self.micro_batch.halve(self.device, self.ranks.first)
            set_rng_state(generators)
            for buffer, saved in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(saved)

    def compile(self) -> None:
        """Compile forward and (through autograd) backward into few kernels: blocks that repeat, else everything."""
        self._module_kernels = None
        self._blocks = CompiledBlocks(self.model)
        if not self._blocks.modules:
            self._forward = torch.compile(self._micro_loss, dynamic=False)
            self._finish = torch.compile(self._count, dynamic=False)

    def uncompile(self) -> None:
        """Restore torch's own kernels."""
        self._forward, self._finish, self._blocks = self._micro_loss, self._count, None

    def state(self) -> dict[str, Any]:
        """Return everything that a step changes."""
        self.reducer.settle()
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "place": [self.position, self.losses],
            **({"average": self.average.model.state_dict()} if self.average else {}),
        }

    def restore(self, state: dict[str, Any], *, forget_optimizer: bool) -> None:
        """Put a snapshot of ``state`` back in place: a captured graph goes on using the same memory.

        ``forget_optimizer``: it had no state yet: what it has now becomes as when it is fresh.
        """
        with torch.no_grad():
            live: dict[str, Any] = {"model": self.model.state_dict(), "place": [self.position, self.losses]}
            if self.average:
                live["average"] = self.average.model.state_dict()
            map_tensors(Tensor.copy_, live, state)
            self._restore_optimizer(None if forget_optimizer else state["optimizer"]["state"])
            for group, saved in zip(self.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
                for name in set(group) - {"params"}:
                    if name not in saved:
                        del group[name]
                    elif isinstance(group[name], Tensor):
                        group[name].copy_(saved[name])
                    else:
                        group[name] = saved[name]
        self.reducer.clear()
        self.reducer.refresh()
        if state["scaler"] and self.scaler._scale is not None:  # load_state_dict would replace what a graph holds
            assert self.scaler._growth_tracker is not None
            self.scaler._scale.fill_(state["scaler"]["scale"])
            self.scaler._growth_tracker.fill_(state["scaler"]["_growth_tracker"])

    def load(self, saved: dict[str, Any]) -> None:
        """Load what a checkpoint has besides the weights; learning rates stay those of this run.

        A moving average that it lacks starts at the model's weights.
        """
        if self.average:
            self.average.model.load_state_dict(saved.get("average", saved["model"]))
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        self.optimizer.load_state_dict(saved["optimizer"])
        groups = zip(self.optimizer.param_groups, self._rates, self._base_rates, self._kernel_options, strict=True)
        for group, rate, base, options in groups:
            if isinstance(rate, Tensor):
                rate.copy_(base)
            group.update(options, lr=rate)
        self.reducer.refresh()

    def _restore_optimizer(self, saved: dict[Any, dict[str, Any]] | None) -> None:
        """Restore the state as saved, or as it is before the first step; in place."""
        own_states = self.optimizer.state_dict()["state"]
        groups = {key: group for group in self.optimizer.state_dict()["param_groups"] for key in group["params"]}
        for key, slots in own_states.items():
            for name, value in slots.items():
                slots_before = (saved or {}).get(key, {})
                before = slots_before.get(name)
                if isinstance(before, Tensor):
                    value.copy_(before)
                elif isinstance(value, Tensor):
                    value.fill_(torch_optimizers.first_value(name, groups[key]) or 0.0)
                elif name in slots_before:
                    slots[name] = before

    def _schedule(self, schedule: Any, steps: int, every: int) -> None:
        """Compute every learning rate of the training: as tensors, or as numbers if the host sets them."""
        others: list[dict[str, list[Any]]] = [{} for _ in self._rates]
        if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
            others = torch_optimizers.scheduled(schedule, self.optimizer, steps, every)
            rates = [options.pop("lr") for options in others]
            self._base_rates = [torch.as_tensor(rate).clone() for rate in self._rates]
        else:
            schedules = by_group(schedule, len(self._rates), steps, every)
            if all(isinstance(rate, Tensor) for rate in self._rates):
                factors_GS = table(schedules, steps, self.device)
                groups = zip(self._rates, self._base_rates, factors_GS, strict=True)  # which may share a rate
                tables = {id(rate): (rate, base.view(1, -1) * factors_S[:, None]) for rate, base, factors_S in groups}
                self._scheduled = list(tables.values())
                return
            bases = [float(rate) for rate in self._rates]
            rates = [
                [base * factor(step, steps) for step in range(steps)]
                for base, factor in zip(bases, schedules, strict=True)
            ]
        for rate, values, other in zip(self._rates, rates, others, strict=True):
            if isinstance(rate, Tensor):
                self._scheduled.append((rate, torch.tensor(values, dtype=rate.dtype, device=self.device)[:, None]))
            else:
                other["lr"] = values
        self.host_options = others

    def _gradients(self, shape: Shape, *, overlap: bool) -> Tensor:
        """Compute gradients of the mean loss over all ranks' rows; return this rank's mean loss, [1]."""
        self.reducer.clear()
        total: Tensor | None = None
        parts: dict[str, Tensor] = {}
        for first in range(0, shape.rows, self.micro_batch.rows):
            count = min(self.micro_batch.rows, shape.rows - first)
            self.reducer.overlap = overlap and first + count == shape.rows
            # The backward pass is inside as well: it recomputes values of the forward pass.
            otherwise = self._module_kernels or self._blocks
            with otherwise.running() if otherwise else nullcontext():
                loss = trained_on(self._forward(shape, first, count), parts, count / shape.rows)
                if count != shape.rows:
                    loss = loss * (count / shape.rows)
                total = loss.detach() if total is None else total + loss.detach()
                if shape.share != 1.0:
                    loss = loss * shape.share
                scaled = self.scaler.scale(loss)
                with self._on_side_stream(scaled, whole=count == shape.rows):
                    scaled.backward()  # type: ignore[no-untyped-call]
        for name, value in parts.items():
            if name not in self.parts:
                self.parts[name] = torch.zeros_like(self.losses)
            self.parts[name].index_copy_(0, self.position, value.view(1))
        return torch.zeros(1, device=self.device) if total is None else total.view(1)

    def _on_side_stream(self, loss: Tensor, *, whole: bool) -> AbstractContextManager[None]:
        """Compute weights' gradients on a second stream, in steps that become a graph."""
        products = self._module_kernels.products if self._module_kernels else None
        captured = self.rehearsing or (self.device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        if products is None or not captured or not whole:
            return nullcontext()
        return products.second_stream.backward(loss, products.weights)

    def _micro_loss(self, shape: Shape, first: int, count: int) -> Any:
        batch = self.source.load(self.position, shape, first, count)
        with self.precision.autocast():
            return self.loss(self._called, *batch)

    def _update(self, loss: Tensor) -> None:
        self.reducer.reduce()
        if self._clip_norm is not None:
            self.scaler.unscale_(cast(torch.optim.Optimizer, self.optimizer))
            self.reducer.clip(self._clip_norm)
        if self._scheduled:
            step = self.steps_before + self.position
            for rate, rates_SR in self._scheduled:
                torch.index_select(rates_SR, 0, step, out=rate.view(1, -1))
        if any(self.host_options):
            number = int(self.steps_before + self.position)  # on a GPU this waits, so it is not captured
            for group, options in zip(self.optimizer.param_groups, self.host_options, strict=True):
                group.update({name: values[number] for name, values in options.items()})
        self.scaler.step(cast(torch.optim.Optimizer, self.optimizer))
        self.scaler.update()
        if self.average:
            self.reducer.settle()
            self.average.update()
        self._finish(loss)

    def _count(self, loss: Tensor) -> None:
        self.losses.index_copy_(0, self.position, loss.float())
        self.position.add_(1)


def place(model: nn.Module, device: torch.device) -> None:
    """Move a model that is elsewhere to the device, on a GPU with its convolutions' weights channels last."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.device == device for tensor in tensors):
        return
    model.to(device)
    if device.type == "cuda" and any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def module_kernels(model: nn.Module, precision: Precision, ranks: Ranks, reducer: Gradients) -> ModuleKernels | None:
    """Return the kernels inside of the model, compiled, or None if there are none. The first rank prints which.

    The reducer waits for gradients that they compute on a second stream.
    """
    from seatrial.train.module_patches import prepare  # torch.fx takes a quarter of a second to import

    described, found = prepare(model, precision)
    if found and found.products and isinstance(reducer, GradientReducer):
        reducer.before_sending = found.products.second_stream.wait
    if ranks.first:
        print(described, flush=True)
    return found
