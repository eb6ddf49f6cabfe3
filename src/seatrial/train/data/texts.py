"""Token sequences of different lengths on the device, in batches of like length.

Shapes: N texts, B rows of a batch, L tokens a row, S steps of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.train.data.order import CPU, Shape, Source, Span, deal, places, shuffled
from seatrial.train.distributed import Ranks
from seatrial.train.errors import DataError

#: Lengths that rows are padded to; one step is captured for each. Multiples of 8 for Tensor Cores.
LENGTHS = (8, 16, 24, 32, 40, 48, 64, 96, 128, 256, 512)
PAD = 0


@dataclass(frozen=True)
class TextSet:
    """Token numbers, padded with 0, their count, and the labels."""

    tokens_NL: Tensor
    lengths_N: Tensor
    labels_N: Tensor

    @classmethod
    def of(cls, tokens: list[list[int]], labels_N: Tensor) -> TextSet:
        """Make a set from lists of token numbers. Raises DataError if there is none, or one is too long for LENGTHS."""
        if not tokens:
            raise DataError("the set has no texts")
        lengths_N = torch.tensor([len(row) for row in tokens])
        longest = int(lengths_N.max())
        if longest > LENGTHS[-1]:
            raise DataError(f"a text has {longest} tokens; the maximum is {LENGTHS[-1]}")
        width = next(length for length in LENGTHS if length >= longest)
        tokens_NL = torch.full((len(tokens), width), PAD)
        for row, numbers in zip(tokens_NL, tokens, strict=True):
            row[: len(numbers)] = torch.tensor(numbers)
        return cls(tokens_NL, lengths_N, labels_N)

    def __len__(self) -> int:
        return len(self.labels_N)

    def split(self, first_N: Tensor) -> tuple[TextSet, TextSet]:
        """Return the texts where the mask is set, and the others."""
        return self._take(first_N), self._take(~first_N)

    def _take(self, mask_N: Tensor) -> TextSet:
        return TextSet(self.tokens_NL[mask_N], self.lengths_N[mask_N], self.labels_N[mask_N])


class Texts(Source):
    """Training batches from a set on the device: each of texts of like length, in random order.

    An epoch is shuffled, then sorted by padded length (stable), cut into global batches, and these are shuffled. The
    multiset of shapes is the same every epoch, so all of them can be captured beforehand.
    """

    def __init__(self, data: TextSet, batch: int, ranks: Ranks, seed: int) -> None:
        self._seed, self._device = seed, ranks.device
        self._bounds = torch.tensor(LENGTHS)
        self._padded_N = self._bounds[torch.searchsorted(self._bounds, data.lengths_N)]
        self._sorted_spans = deal(len(data), batch, ranks.rank, ranks.world)
        starts = [first - first % (batch * ranks.world) for first, _ in self._sorted_spans]
        ends = [*starts[1:], len(data)]
        longest = self._padded_N.sort().values
        lengths = [int(longest[end - 1]) for end in ends]
        self._sorted_spans = [
            Span(span.first, span.shape._replace(length=length))
            for span, length in zip(self._sorted_spans, lengths, strict=True)
        ]
        self.spans = self._sorted_spans
        self._tokens_NL, self._labels_N = data.tokens_NL.to(ranks.device), data.labels_N.to(ranks.device)
        self._lengths_N = data.lengths_N.to(ranks.device)
        self._columns_L = torch.arange(data.tokens_NL.shape[1], device=ranks.device)
        self._rows_SB = torch.zeros(len(self.spans), batch, dtype=torch.long, device=ranks.device)
        filled = sum(length * (end - start) for length, start, end in zip(lengths, starts, ends, strict=True))
        #: Share of the tokens that are padding.
        self.padding = 1 - int(data.lengths_N.sum()) / filled

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch: a function of seed and epoch alone, the same on every rank."""
        order_N = shuffled(len(self._padded_N), self._seed, epoch, CPU)
        order_N = order_N[self._padded_N[order_N].argsort(stable=True)]
        steps = shuffled(len(self._sorted_spans), self._seed + 1, epoch, CPU).tolist()
        self.spans = [self._sorted_spans[step] for step in steps]
        self._rows_SB.copy_(order_N[places(self.spans, self._rows_SB.shape[1])])

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return rows ``first`` to ``first + count`` of step ``position``: (tokens_BL, real_BL), labels_B."""
        rows_B = self._rows_SB.index_select(0, position).view(-1)[first : first + count]
        tokens_BL = self._tokens_NL[:, : shape.length].index_select(0, rows_B)
        real_BL = self._columns_L[: shape.length] < self._lengths_N.index_select(0, rows_B)[:, None]
        return (tokens_BL, real_BL), self._labels_N.index_select(0, rows_B)


class TestTexts:
    """The batches of a test set, this rank's share, sorted by length."""

    __test__ = False  # pytest would collect it for its name

    def __init__(self, data: TextSet, ranks: Ranks, batch: int = 256) -> None:
        share = data.lengths_N.argsort(stable=True)[ranks.rank :: ranks.world]
        self._tokens_NL, self._labels_N = data.tokens_NL[share].to(ranks.device), data.labels_N[share].to(ranks.device)
        self._lengths_N, self._lengths = data.lengths_N[share].to(ranks.device), data.lengths_N[share].tolist()
        self._batch = batch

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        for first in range(0, len(self._lengths), self._batch):
            rows = slice(first, first + self._batch)
            longest = max(self._lengths[rows])
            columns_L = torch.arange(longest, device=self._labels_N.device)
            real_BL = columns_L < self._lengths_N[rows][:, None]
            yield (self._tokens_NL[rows, :longest], real_BL), self._labels_N[rows]
