"""Several ranks that train one model: start by torchrun, agreement, averaged gradients, sums over uneven shards.

Gradients are averaged here rather than by DistributedDataParallel, for two reasons. After an out-of-memory error the
ranks must agree before any gradient is reduced, or the rank that failed leaves its peers waiting in a bucket. And the
reduction must be capturable in a CUDA graph together with the step. Buckets and overlap are alike.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch.distributed's, typed

from seatrial.train.errors import InputError

#: Bytes of gradients reduced at once: DistributedDataParallel's default (bucket_cap_mb=25, torch 2.13).
BUCKET_BYTES = 25 * 2**20

#: Number format of gradients in transit, by the format of the products. Products in bf16 give gradients of
#: that precision, which autocast widens: sending them as they came halves the traffic (as DDP's bf16_compress_hook).
WIRE: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.bfloat16}


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    ``control``: a Gloo group for the ranks' decisions, which must not wait for the GPU; None when alone.
    """

    rank: int
    world: int
    device: torch.device
    control: Any = None

    @property
    def first(self) -> bool:
        """Return True on the rank that prints and writes files."""
        return self.rank == 0

    def batch_words(self, examples: int) -> str:
        """Return ``batch 64``, or ``batch 64 on each of 4 ranks, 256 together``."""
        together = f" on each of {self.world} ranks, {examples * self.world} together" if self.world > 1 else ""
        return f"batch {examples}{together}"

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any rank. Every rank must call it."""
        return self.any_of([flag])[0]

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag if it is set on any rank. Every rank must call it, with as many."""
        if self.world == 1:
            return list(flags)
        answers = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(answers, dist.ReduceOp.MAX, group=self.control)
        return answers.bool().tolist()

    def sum(self, values: Tensor) -> Tensor:
        """Sum elementwise over the ranks, in place, on the training device."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, on every rank. For small objects of checkpoints."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def same_start(self, model: nn.Module) -> None:
        """Send the first rank's parameters and buffers to every rank."""
        if self.world > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.data, 0)


@contextmanager
def ranks(timeout_s: float = 600.0) -> Iterator[Ranks]:
    """Open torchrun's ranks (RANK, WORLD_SIZE, LOCAL_RANK), or this process alone. Raises InputError: too few GPUs."""
    world, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if gpus and local_rank >= gpus:
        raise InputError(f"rank {local_rank} on this machine has no GPU: it has {gpus}", fix=f"--gpus {gpus}")
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(0, 1, device)
        return
    timeout = timedelta(seconds=timeout_s)
    if dist.is_initialized():  # by the script, as one for DistributedDataParallel does; it also closes it
        if gpus and "cuda:nccl" not in (named := dist.get_backend_config()):  # get_backend() may be "undefined"
            raise InputError(f"the script's process group is of {named}, not of nccl", fix="no init_process_group()")
        yield Ranks(dist.get_rank(), dist.get_world_size(), device, dist.new_group(backend="gloo", timeout=timeout))
        return
    backend, rank = "nccl" if gpus else "gloo", int(os.environ["RANK"])
    store, device_id = open_store(rank, world), device if gpus else None
    # Reductions do not wait for a free multiprocessor after the backward pass that they overlap with.
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True) if gpus else None
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timeout, device_id=device_id, pg_options=options
    )
    try:
        yield Ranks(dist.get_rank(), world, device, dist.new_group(backend="gloo", timeout=timeout))
    finally:
        dist.destroy_process_group()


@cache
def here() -> Ranks:
    """Return this process's ranks, opened at the first call and closed at its end: for scripts without ``ranks()``."""
    opened = ExitStack()
    found = opened.enter_context(ranks())
    atexit.register(opened.close)
    return found


def open_store(rank: int, world: int) -> PrefixStore:
    """Connect to torchrun's store (MASTER_ADDR, MASTER_PORT), with keys of this attempt alone.

    torchrun keeps one store over restarts (torch 2.13, --standalone), which has the addresses of the dead ranks. Where
    the first rank makes the store, it is new each time, and nodes that came later have counted fewer restarts.
    """
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, is_master=rank == 0 and not hosted)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if hosted else "0"
    return PrefixStore(f"seatrial/{attempt}", store)


class Gradients(Protocol):
    """The operations of a step on gradients, in any memory.

    Attributes:
        overlap: the backward pass that comes is the step's last: what it has finished may be sent at once.
        second_stream: some of a step runs on a second stream; in a graph the first has priority over it.
    """

    ranks: Ranks
    overlap: bool = False
    second_stream: bool = False

    def clear(self) -> None:
        """Make the next backward pass write them instead of adding."""

    def agree(self, failed: bool) -> bool:
        """Return True if the step failed on any rank; every rank calls it between backward pass and ``reduce``."""
        return self.ranks.any(failed)

    def reduce(self) -> None:
        """Average them over the ranks."""

    def clip(self, most: float) -> None:
        """Limit their norm."""

    def refresh(self) -> None:
        """Note that something other than a step has changed the parameters."""
        return

    def settle(self) -> None:
        """Update all parameters before something other than a step reads them."""
        return


class GradientReducer(Gradients):
    """Averages gradients over the ranks, in buckets; alone it only clears them.

    With ``overlap`` on, each bucket is sent as soon as the backward pass has filled it (set it for the last micro-batch
    only); otherwise ``reduce`` sends all of them. The gradients are reduced where autograd put them, a bucket by one
    grouped call: into a flat copy they would have to be added, and zeroed before, which for BERT-base is 2.2 GB of
    memory traffic a step. Only for another format on the wire they are copied.

    A parameter that is frozen, or that no rank has a gradient for, keeps none, as on one rank and with
    DistributedDataParallel: with zeros in its place an optimizer would decay it and follow its momentum. What a rank
    lacks and another has is zeros. Which parameters are frozen is the same on every rank, and may change between steps.

    Args:
        computed: format of the model's products; WIRE has the format that gradients travel in.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, computed: torch.dtype = torch.float32) -> None:
        self.ranks = ranks
        self._wire = WIRE.get(computed)
        self._copies: list[tuple[list[Tensor], list[Tensor]]] = []
        #: Called before a bucket is sent, where other streams write gradients.
        self.before_sending: Callable[[], None] = lambda: None
        self.parameters = list(model.parameters())
        self._buckets: list[list[nn.Parameter]] = []
        #: Each parameter's bucket; and each bucket's parameters in this step.
        self._places: dict[nn.Parameter, int] = {}
        self._sending: list[list[nn.Parameter]] = []
        #: Parameters that no rank had a gradient for in the last step that was agreed on.
        self._unused: set[nn.Parameter] = set()
        self._left_out: set[nn.Parameter] = set()
        self._waiting: list[dist.Work] = []
        self._missing: list[set[nn.Parameter]] = []
        self._sent = 0

    def clear(self) -> None:
        """Drop the gradients, so that the next backward pass writes instead of adding."""
        for parameter in self.parameters:
            parameter.grad = None
        self._waiting, self._copies, self._sent = [], [], 0
        if self.ranks.world == 1:
            return
        self._place([p for p in self.parameters if p.requires_grad or p in self._places])
        # A graph repeats the steps that were agreed on before it was captured, and cannot agree itself.
        captured = self.ranks.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._left_out = self._unused if captured else set()
        self._sending = [[p for p in bucket if p.requires_grad and p not in self._left_out] for bucket in self._buckets]
        self._missing = [set(bucket) for bucket in self._sending]

    def _place(self, trained: list[nn.Parameter]) -> None:
        """Make buckets and hooks for parameters without: at first for all, then for unfrozen ones."""
        if all(parameter in self._places for parameter in trained):
            return
        self._buckets = _buckets(trained)
        for parameter in trained:
            if parameter not in self._places:
                parameter.register_post_accumulate_grad_hook(self.filled)  # type: ignore[no-untyped-call]
        self._places = {parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket}

    def agree(self, failed: bool) -> bool:
        """Return True if the step failed on any rank; parameters without a gradient on every rank are not sent."""
        if self.ranks.world == 1:
            return failed
        has = [parameter.grad is not None for parameter in self.parameters]
        any_failed, *used = self.ranks.any_of([failed, *has])
        self._unused = {parameter for parameter, used in zip(self.parameters, used, strict=True) if not used}
        self._sending = [[p for p in bucket if p not in self._unused] for bucket in self._sending]
        return any_failed

    def reduce(self) -> None:
        """Average over the ranks: send what was not sent, wait for all. What was not agreed on is sent as zeros."""
        while self._sent < len(self._buckets):
            self._send_next()
        for work in self._waiting:
            work.wait()
        for gradients, sent in self._copies:
            torch._foreach_copy_(gradients, sent)
        self._waiting, self._copies = [], []

    def clip(self, most: float) -> None:
        """Limit the norm of all gradients together."""
        nn.utils.clip_grad_norm_(self.parameters, most)

    def filled(self, parameter: nn.Parameter) -> None:
        """Send the buckets that this gradient completes, in a step's last backward pass."""
        assert parameter not in self._left_out, "a captured step is one that was agreed on"
        if self.overlap:
            missing = self._missing[self._places[parameter]]
            if parameter not in missing:  # more comes after it was counted, and may have been sent
                raise RuntimeError("a weight gets its gradient in several parts: use_reentrant=False in checkpoint()")
            missing.remove(parameter)
            while self._sent < len(self._buckets) and not self._missing[self._sent]:
                self._send_next()

    def _send_next(self) -> None:
        """Send the next bucket: in the same order on every rank, or they would mix them up."""
        gradients = [_gradient(parameter) for parameter in self._sending[self._sent]]
        self._sent += 1
        if not gradients:
            return
        self.before_sending()
        if self._wire is not None and gradients[0].dtype != self._wire:
            flat = torch.empty(sum(map(Tensor.numel, gradients)), dtype=self._wire, device=gradients[0].device)
            pieces = list(torch.split(flat, [gradient.numel() for gradient in gradients]))
            torch._foreach_copy_(pieces, gradients)
            self._copies.append((gradients, pieces))
            gradients = [flat]
        options = dist.AllreduceCoalescedOptions()
        if gradients[0].is_cuda:
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG)
        else:  # not every release of Gloo averages
            torch._foreach_div_(gradients, self.ranks.world)
        group = dist.group.WORLD
        assert group is not None
        self._waiting.append(group.allreduce_coalesced(gradients, options))


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient in its own memory order; zeros if this rank has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.layout is not torch.strided:
        raise InputError("a sparse gradient cannot be averaged over the ranks", fix="nn.Embedding(..., sparse=False)")
    return parameter.grad.as_strided((parameter.numel(),), (1,))


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters whose gradients are sent together, in the order that backward passes fill them."""
    groups: list[list[nn.Parameter]] = []
    left_bytes = 0
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        if not groups or size > left_bytes or parameter.dtype != groups[-1][0].dtype:
            groups.append([])
            left_bytes = BUCKET_BYTES
        groups[-1].append(parameter)
        left_bytes -= size
    return groups
