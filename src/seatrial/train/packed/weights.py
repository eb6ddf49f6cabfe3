"""A large model's parameters in one flat array each: the parameters, their gradients, and a copy for the products.

The model keeps its layers and names: its parameters become views. Gradients and the copy are in the type of the
products; nothing is cast in a step but by the update, which writes the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.train.distributed import BUCKET_BYTES, Ranks
from seatrial.train.kernels import flat_adam

#: Elements that each parameter begins at a multiple of: 16 bytes of bf16, what a thread reads at once.
ALIGNED = 8


class FlatWeights:
    """Parameters one behind the other, and what is computed from them: a step's ``Gradients``.

    Args:
        looked_up: tables of embeddings, which need no copy. matrices: what decays besides. others: what does not decay.
        dtype: of the products.
    """

    def __init__(
        self, looked_up: Sequence[nn.Parameter], matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter],
        dtype: torch.dtype, ranks: Ranks,
    ) -> None:  # fmt: skip
        self.parameters = [*looked_up, *matrices, *others]
        self.ranks, self.dtype = ranks, dtype
        self._places: dict[nn.Parameter, int] = {}
        end = 0
        ends = []
        for parameter in self.parameters:
            self._places[parameter] = end
            end += -(-parameter.numel() // ALIGNED) * ALIGNED
            ends.append(end)
        #: The first element with a copy, and the first that does not decay.
        self.copied = ends[len(looked_up) - 1] if looked_up else 0
        self.decayed = ends[len(looked_up) + len(matrices) - 1]
        device = self.parameters[0].device
        self.flat = torch.zeros(end, device=device)
        self.gradients = torch.zeros(end, dtype=dtype, device=device)
        self.values = torch.zeros(end, dtype=dtype, device=device)
        #: The gradients' norm, and the factor that clips them; None before ``clip``.
        self.norm: Tensor | None = None
        #: Whether the next backward pass writes the gradients, not adds to them.
        self.fresh = True
        self.overlap = False
        self._waiting: list[Any] = []
        self._sent = self.decayed
        with torch.no_grad():
            for parameter in self.parameters:
                own = self._view(self.flat, parameter)
                own.copy_(parameter)
                parameter.data = own
        self.refresh()

    def _view(self, flat: Tensor, *parameters: nn.Parameter) -> Tensor:
        """What belongs to parameters that lie side by side, stacked along their first dimension."""
        begin, first = self._places[parameters[0]], parameters[0]
        for before, after in zip(parameters, parameters[1:], strict=False):
            assert self._places[after] == self._places[before] + before.numel(), "not side by side"
        count = sum(parameter.numel() for parameter in parameters)
        shape = (sum(parameter.shape[0] for parameter in parameters), *first.shape[1:])
        return flat[begin : begin + count].view(shape)

    def value(self, *parameters: nn.Parameter) -> Tensor:
        """The copy for the products of one, or of several that lie side by side."""
        return self._view(self.values, *parameters)

    def gradient(self, *parameters: nn.Parameter) -> Tensor:
        """Where their gradient goes."""
        return self._view(self.gradients, *parameters)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Two arrays of zeros as the parameters lie, for an optimizer."""
        return torch.zeros_like(self.flat), torch.zeros_like(self.flat)

    def like(self, flat: Tensor, parameter: nn.Parameter) -> Tensor:
        """A parameter's piece of an array that lies like these."""
        return self._view(flat, parameter)

    def refresh(self) -> None:
        """Copy the parameters again: something other than the update has changed them."""
        self.values[self.copied :].copy_(self.flat[self.copied :])

    def clear(self) -> None:
        """The next backward pass writes the gradients."""
        self.fresh, self.norm = True, None
        self._waiting, self._sent = [], self.decayed

    def finished(self, first: nn.Parameter) -> None:
        """The backward pass has written the gradients of this matrix and of all that lie behind it: send enough ones.

        They lie in the order of the model, so that a backward pass finishes them from the end on.
        """
        begin = self._places[first]
        if self.overlap and self.ranks.world > 1 and (self._sent - begin) * self.dtype.itemsize >= BUCKET_BYTES:
            self._send(begin, self._sent)
            self._sent = begin

    def reduce(self) -> None:
        """Average over the ranks: send what was not sent, wait for all."""
        if self.ranks.world == 1:
            return
        self._send(self.decayed, len(self.gradients))
        self._send(0, self._sent)
        for work in self._waiting:
            work.wait()
        self._waiting = []

    def clip(self, most: float) -> None:
        """Limit the norm: the update multiplies by the factor."""
        self.norm = torch.empty(2, device=self.flat.device)
        flat_adam.clip_factor(self.gradients, most, self.norm)

    def _send(self, begin: int, end: int) -> None:
        piece = self.gradients[begin:end]
        if not piece.is_cuda:  # not every release of Gloo averages
            piece.div_(self.ranks.world)
        kind = dist.ReduceOp.AVG if piece.is_cuda else dist.ReduceOp.SUM
        self._waiting.append(dist.all_reduce(piece, kind, async_op=True))
