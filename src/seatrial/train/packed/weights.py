"""A large model's parameters in one flat array each: the parameters, their gradients, and a copy for the products.

The model keeps its layers and names: its parameters become views. Gradients and the copy are in the type of the
products; nothing is cast in a step but by the update, which writes the copy.

An update moves bytes and leaves the arithmetic idle, a forward pass the reverse, so they run at the same time:
``update`` changes the first layer's matrices and all that is small; those of later layers are changed on a second
stream when the next step begins, a layer at a time, and the forward pass waits for each where it comes to it. Other
readers call ``settle`` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.train.autocast_weights import SideStream
from seatrial.train.distributed import BUCKET_BYTES, Gradients, Ranks
from seatrial.train.kernels import flat_adam
from seatrial.train.kernels.flat_adam import Rule
from seatrial.train.optim.optimizer import Optimizer

#: Elements that each parameter begins at a multiple of: 16 bytes of bf16, what a thread reads at once.
ALIGNED = 8


class FlatWeights(Gradients):
    """Parameters one behind the other, and what is computed from them: a step's ``Gradients``.

    The gradients of the words' table are one row for each token that a step has, before all others.

    Args:
        words: the table of which a step reads few rows. tables: others, small, which need no copy for products.
        matrices: what decays besides. others: what does not decay.
        dtype: of the products.
        slots: different tokens that a step can have.
        steps: of an epoch, after which the words' table is brought up to date.
        later: matrices, in the order in which a step reads them: each and what follows it up to the next is updated
            when the next step begins.
    """

    def __init__(
        self, words: nn.Parameter, tables: Sequence[nn.Parameter], matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter], dtype: torch.dtype, ranks: Ranks, *, slots: int, steps: int, rule: Rule,
        later: Sequence[nn.Parameter] = (),
    ) -> None:  # fmt: skip
        self.words, self.parameters = words, [*tables, *matrices, *others]
        self.ranks, self.dtype, self.rule = ranks, dtype, rule
        self._places: dict[nn.Parameter, int] = {}
        ends, device = [0], words.device
        for parameter in self.parameters:
            self._places[parameter] = ends[-1]
            ends.append(ends[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        #: The first element with a copy, and the first that does not decay.
        self.copied, self.decayed = ends[len(tables)], ends[len(tables) + len(matrices)]
        size = ends[-1]
        self.flat = torch.zeros(size, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self.moments = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self.word_moments = torch.zeros_like(words.data), torch.zeros_like(words.data)
        #: [slots H + size].
        self.all_gradients = torch.zeros(slots * words.shape[1] + size, dtype=dtype, device=device)
        self.word_gradients = self.all_gradients[: slots * words.shape[1]].view(slots, -1)
        self.gradients = self.all_gradients[slots * words.shape[1] :]
        #: Steps done, which of them each word's row has seen, and which the later matrices have.
        self.done = torch.zeros((), device=device)
        self._seen = torch.zeros(len(words), dtype=torch.int32, device=device)
        self._applied = torch.zeros((), device=device)
        self._rules = torch.zeros(2 * steps + 16, 3, device=device)
        #: The step's tokens; None before its first batch.
        self._there: Tensor | None = None
        #: The gradients' norm, and the factor that clips them.
        self.norm = torch.ones(2, device=device)
        self._rate: Tensor | None = None
        bounds = [*(self._places[parameter] for parameter in later), self.decayed]
        self._at_once = (0, bounds[0]), (self.decayed, size)
        self._later = dict(zip(later, pairwise(bounds), strict=False))
        self.side_stream = SideStream(device)
        self.second_stream = self.side_stream.on
        #: Each of ``later`` → the event of its update, until it was waited for.
        self._updated: dict[nn.Parameter, torch.cuda.Event] = {}
        #: True if the next backward pass writes the gradients, not adds to them.
        self.fresh = True
        self._waiting: list[Any] = []
        self._sent = self.decayed
        with torch.no_grad():
            for parameter in self.parameters:
                own = self._view(self.flat, parameter)
                own.copy_(parameter)
                parameter.data = own
        self.refresh()

    def _view(self, flat: Tensor, *parameters: nn.Parameter) -> Tensor:
        """Return tensors of parameters that lie side by side, stacked along their first dimension."""
        begin, first = self._places[parameters[0]], parameters[0]
        for before, after in pairwise(parameters):
            assert self._places[after] == self._places[before] + before.numel(), "not side by side"
        count = sum(parameter.numel() for parameter in parameters)
        shape = (sum(parameter.shape[0] for parameter in parameters), *first.shape[1:])
        return flat[begin : begin + count].view(shape)

    def value(self, *parameters: nn.Parameter) -> Tensor:
        """Return the copy for the products of one, or of several that lie side by side."""
        return self._view(self.values, *parameters)

    def gradient(self, *parameters: nn.Parameter) -> Tensor:
        """Return the place of their gradient."""
        return self._view(self.gradients, *parameters)

    def state_of(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """Return its moments."""
        if parameter is self.words:
            return self.word_moments
        first, second = (self._view(each, parameter) for each in self.moments)
        return first, second

    def begin(self, there_S: Tensor) -> None:
        """Begin a step that reads these words (-1: none): bring them up to date, and begin to update the matrices."""
        self._there = there_S
        self._update_rows(None, there_S)
        if self.fresh and self._rate is not None:
            self._update_later(self._rate)

    def wait_for(self, matrix: nn.Parameter) -> None:
        """Wait for the update of this matrix, to which a forward pass has come."""
        if event := self._updated.pop(matrix, None):
            event.wait()

    @torch.no_grad()
    def settle(self) -> None:
        """Update everything that a step left for later: something other than a step is about to read it."""
        self._update_rows(None, None)
        if self._rate is not None:
            self._update_later(self._rate)
            self.side_stream.wait()
            self._updated = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters anew, which something other than a step has changed; all are of step ``done`` now."""
        self.values[self.copied :].copy_(self.flat[self.copied :])
        self._seen.copy_(self.done.expand(len(self._seen)))
        self._applied.copy_(self.done)

    def update(self, rate: Tensor) -> None:
        """Run one step of AdamW, of which the later matrices' share comes when the next step begins."""
        self._rate = rate
        for begin, end in self._at_once:
            self._update(begin, end, rate, rules=self._rules if begin == 0 else None)
        if self._there is not None:
            self._update_rows(self.word_gradients, self._there)

    @torch.no_grad()
    def _update_later(self, rate: Tensor) -> None:
        """Update the later matrices where that was not done since the last step, on the second stream."""
        if not self._later:
            return
        with self.side_stream.running():
            for matrix, (begin, end) in self._later.items():
                self._update(begin, end, rate, applied=self._applied)
                if end == self.decayed:
                    self._applied.copy_(self.done)
                if self.side_stream.on:
                    self._updated[matrix] = self.side_stream.event()

    def _update(
        self, begin: int, end: int, rate: Tensor, *, rules: Tensor | None = None, applied: Tensor | None = None
    ) -> None:
        """Run AdamW for some elements."""
        means, squares = self.moments
        every = (self.flat, means, squares, self.gradients, self.values)
        decayed, copied = (min(max(bound - begin, 0), end - begin) for bound in (self.decayed, self.copied))
        numbers = (decayed, copied, self.norm, self.done, rate, self.rule, rules, applied)
        flat_adam.update([each[begin:end] for each in every], *numbers)

    def _update_rows(self, gradients: Tensor | None, there: Tensor | None) -> None:
        table = (self.words.data, *self.word_moments)
        numbers = (self.norm, self.done, self._rules, self.rule, self.dtype)
        flat_adam.update_rows(table, gradients, there, self._seen, *numbers)

    def clear(self) -> None:
        """Forget the last step, so that the next backward pass writes the gradients."""
        self.fresh, self._updated = True, {}
        self.side_stream.forget()
        self._waiting, self._sent = [], self.decayed

    def finished(self, first: nn.Parameter) -> None:
        """Send gradients if enough are ready: backward, from the end on, has written this matrix's and those behind."""
        begin = self._places[first]
        if self.overlap and self.ranks.world > 1 and (self._sent - begin) * self.dtype.itemsize >= BUCKET_BYTES:
            self._send(begin, self._sent)
            self._sent = begin

    def reduce(self) -> None:
        """Average over the ranks: send what was not sent, wait for all."""
        if self.ranks.world == 1:
            return
        self._send(self.decayed, len(self.gradients))
        self._send(-self.word_gradients.numel(), self._sent)
        for work in self._waiting:
            work.wait()
        self._waiting = []

    def clip(self, most: float) -> None:
        """Limit the norm: the update multiplies by the factor."""
        flat_adam.clip_factor(self.all_gradients, most, self.norm, self.rule)

    def _send(self, begin: int, end: int) -> None:
        words = self.word_gradients.numel()
        piece = self.all_gradients[words + begin : words + end]
        if not piece.is_cuda:  # not every release of Gloo averages
            piece.div_(self.ranks.world)
        kind = dist.ReduceOp.AVG if piece.is_cuda else dist.ReduceOp.SUM
        with self.side_stream.running():  # NCCL waits for both streams, and the first one goes on
            self._waiting.append(dist.all_reduce(piece, kind, async_op=True))


class FlatAdamW(Optimizer):
    """AdamW as ``optim.optimizer.adamw`` has it: matrices and embeddings decay, what has one dimension does not."""

    def __init__(self, weights: FlatWeights, learning_rate: float) -> None:
        rate, rule = torch.tensor(learning_rate, device=weights.flat.device), weights.rule
        parameters = [weights.words, *weights.parameters]
        groups = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": rule.decay},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
        ]
        super().__init__(groups, {"lr": rate, "betas": rule.betas, "eps": rule.epsilon})
        self._weights = weights

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter, and the copy for the products."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._slots(parameter)
        self._weights.done.add_(1)
        self._weights.update(self.param_groups[0]["lr"])

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        first, second = self._weights.state_of(parameter)  # type: ignore[arg-type]
        return {"step": self._weights.done, "exp_avg": first, "exp_avg_sq": second}
