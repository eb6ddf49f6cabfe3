"""Training batches of texts that lie one behind the other: no token is padding but a few behind the last text.

An epoch's texts are sorted by length (equal ones in random order) and cut into as many layers as a batch has rows; each
batch takes one text of each layer, at random. So every batch has nearly as many tokens as every other, and one captured
step serves all of them. Where chance gives a batch more than there is capacity for, it changes texts with the emptiest.
Shapes: N texts, B rows of a batch, T tokens that a batch has capacity for, S steps of an epoch.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.train.data.order import CPU, Shape, Source, Span, deal, shuffled
from seatrial.train.data.texts import TextSet
from seatrial.train.distributed import Ranks
from seatrial.train.errors import InputError

#: Tokens that capacity is made in steps of: half a tile of cuBLAS' products.
STEP = 64
#: Tokens above the mean that every batch has capacity for, at least.
SLACK = 16
#: Changes of texts between two batches before an epoch falls back to the batches that are known to fit.
MOST_CHANGES = 1000


@dataclass(frozen=True)
class Packed:
    """A batch on the device; all int32.

    Attributes:
        tokens_T: behind the last text: 0. positions_T: within each text.
        starts: [B + 1]: where each text begins, and where the last one ends.
        there_S: the tokens that all ranks' batches of this step have, each once, rising; then -1.
        by_token, by_position: (order of the rows, where each sum begins), of each of ``there_S`` and of each position,
            for the gradients of embeddings.
        longest: tokens a text has at most.
    """

    tokens_T: Tensor
    positions_T: Tensor
    starts: Tensor
    there_S: Tensor
    by_token: tuple[Tensor, Tensor]
    by_position: tuple[Tensor, Tensor]
    longest: int


class PackedTexts(Source):
    """Training batches from a set on the device. Two ranks' batches have the same number of tokens, nearly."""

    #: Steps in one graph: one of BERT-base's shape takes 4 ms, its launch a few µs, its capture 0.1 s.
    steps_per_replay = 1

    def __init__(self, data: TextSet, batch: int, ranks: Ranks, seed: int) -> None:
        self._seed, self._device = seed, ranks.device
        self._lengths_N, self._labels_N = data.lengths_N.cpu(), data.labels_N.cpu()
        real = torch.arange(data.tokens_NL.shape[1]) < self._lengths_N[:, None]
        self._flat = data.tokens_NL.cpu()[real].numpy()
        self._offsets = (self._lengths_N.cumsum(0) - self._lengths_N).numpy()
        self.longest = int(self._lengths_N.max())
        everyone = [dealt(len(data), batch, rank, ranks.world) for rank in range(ranks.world)]
        self._all_spans = [span for spans in zip(*everyone, strict=True) for span in spans]
        self._mine = slice(ranks.rank, None, ranks.world)
        rows = [span.shape.rows for span in self._all_spans]
        self._fitting = balanced(self._lengths_N, rows)
        self._capacity = capacities(self._lengths_N, rows, self._fitting)
        self.spans = [
            Span(span.first, span.shape._replace(length=self._capacity[span.shape.rows]))
            for span in self._all_spans[self._mine]
        ]
        filled = sum(self._capacity[count] for count in rows)
        #: Share of the tokens that are padding.
        self.padding = 1 - int(self._lengths_N.sum()) / filled
        self._widest = max(span.shape.length for span in self.spans)
        self._most, self._world = max(rows), ranks.world
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="packed-texts")
        self._next: tuple[int, Future[Any]] | None = None
        #: Different tokens that a step's batches can have.
        self.slots = min(self._widest * ranks.world, len(np.unique(self._flat)))
        self._table_SW = torch.zeros(
            len(self.spans), sum(self._parts().values()), dtype=torch.int32, device=self._device
        )

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch: a function of seed and epoch alone, the same on every rank. The next one is begun."""
        known, found = self._next or (epoch, self._pool.submit(self._drawn, epoch))
        table = found.result() if known == epoch else self._drawn(epoch)
        self._table_SW.copy_(torch.from_numpy(table))
        self._next = (epoch + 1, self._pool.submit(self._drawn, epoch + 1))

    def _drawn(self, epoch: int) -> Any:
        """Draw an epoch in numbers."""
        rows = [span.shape.rows for span in self._all_spans]
        return self._table(sample_epoch(self._lengths_N, rows, self._capacity, self._seed, epoch) or self._fitting)

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Packed, Tensor]:
        """Return texts ``first`` to ``first + count`` of step ``position``, and their labels_B (int64)."""
        row = self._table_SW.index_select(0, position).view(-1)
        parts = dict(zip(self._parts(), torch.split(row, list(self._parts().values())), strict=True))
        capacity, rows = shape.length, shape.rows
        if count != rows:
            return self._some(parts, shape, first, count)
        packed = Packed(
            parts["tokens"][:capacity],
            parts["positions"][:capacity],
            parts["starts"][: rows + 1],
            parts["there"],
            (parts["token order"][:capacity], parts["token begins"]),
            (parts["position order"][:capacity], parts["position begins"]),
            self.longest,
        )
        return packed, parts["labels"][:rows].long()

    def _some(self, parts: dict[str, Tensor], shape: Shape, first: int, count: int) -> tuple[Packed, Tensor]:
        """Return a micro-batch, whose texts lie in a row within the batch's; find its sums' orders on the device."""
        capacity = min(shape.length, -(-count * self.longest // STEP) * STEP)
        starts = parts["starts"][first : first + count + 1]
        begin, end = starts[:1].long(), starts[-1:].long()
        places = begin + torch.arange(capacity, device=self._device)
        inside = places < end
        within = places.clamp(max=self._widest - 1)
        tokens = torch.where(inside, parts["tokens"][within], 0).int()
        positions = torch.where(inside, parts["positions"][within], 0).int()
        there = parts["there"]
        of_token = torch.searchsorted(torch.where(there < 0, torch.iinfo(torch.int32).max, there), tokens)
        by_token = _sums(torch.where(inside, of_token, self.slots), self.slots)
        by_position = _sums(torch.where(inside, positions, self.longest), self.longest)
        packed = Packed(tokens, positions, (starts - begin).int(), there, by_token, by_position, self.longest)
        return packed, parts["labels"][first : first + count].long()

    def _parts(self) -> dict[str, int]:
        """Return the parts of a row of the table and their lengths."""
        tokens = self._widest
        return {
            "tokens": tokens, "positions": tokens, "starts": self._most + 1, "labels": self._most, "there": self.slots,
            "token order": tokens, "token begins": self.slots + 1,
            "position order": tokens, "position begins": self.longest + 1,
        }  # fmt: skip

    def _tokens_of(self, batches: list[Tensor]) -> tuple[Any, ...]:
        """Return the texts of some batches, their lengths, and all of their tokens with the places in their text."""
        texts = torch.cat(batches).numpy()
        lengths = self._lengths_N.numpy()[texts]
        positions = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        return texts, lengths, self._flat[np.repeat(self._offsets[texts], lengths) + positions], positions

    def _table(self, everyone: list[Tensor]) -> Any:
        """Return an epoch in numbers, [S, W] int32: what ``_parts`` names, of each batch of this rank."""
        parts, batches = self._parts(), everyone[self._mine]
        table = np.zeros((len(batches), sum(parts.values())), dtype=np.int32)
        texts, lengths, tokens, positions = self._tokens_of(batches)
        counts = np.array([len(batch) for batch in batches])
        step = np.repeat(np.arange(len(batches)), counts)
        ends = lengths.cumsum()
        begins = ends - lengths  # of each text, in the epoch
        first = np.concatenate([[0], np.cumsum(counts)])[:-1]  # text of each batch
        token_step = np.repeat(step, lengths)
        within = np.arange(ends[-1]) - begins[first][token_step]
        begin = dict(zip(parts, np.cumsum([0, *parts.values()]), strict=False))
        table[token_step, begin["tokens"] + within] = tokens
        table[token_step, begin["positions"] + within] = positions
        totals = np.bincount(token_step, minlength=len(batches))
        number = np.arange(len(texts)) - first[step]
        table[step, begin["labels"] + number] = self._labels_N.numpy()[texts]
        table[step, begin["starts"] + number + 1] = ends - begins[first][step]
        widest = int(max(self._flat.max(), self.longest)) + 1
        together = (everyone[first : first + self._world] for first in range(0, len(everyone), self._world))
        there = [np.unique(self._tokens_of(batches)[2]) for batches in together]
        counts = np.array([len(each) for each in there])
        slot = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        table[:, begin["there"] :][:, : self.slots] = -1
        table[np.repeat(np.arange(len(there)), counts), begin["there"] + slot] = np.concatenate(there)
        every = np.arange(self.longest)
        for kind, names, sums in (("token", tokens, there), ("position", positions, [every] * len(there))):
            order = np.argsort(token_step * widest + names, kind="stable")
            table[token_step, begin[f"{kind} order"] + within] = within[order]
            sorted_names = (token_step * widest + names)[order]
            opens = begins[first]
            for number, wanted in enumerate(sums):
                found = np.searchsorted(sorted_names, number * widest + wanted) - opens[number]
                filled = table[number, begin[f"{kind} begins"] :][: parts[f"{kind} begins"]]
                filled[: len(found)] = found
                filled[len(found) :] = totals[number]
        return table


def packed_tests(data: TextSet, ranks: Ranks, batch: int = 256) -> list[tuple[Packed, Tensor]]:
    """Return the batches of a test set, this rank's share."""
    share = data.lengths_N.cpu().argsort(stable=True, descending=True)[ranks.rank :: ranks.world]
    return [_tested(data, texts, ranks.device) for texts in torch.split(share, batch)]


def _tested(data: TextSet, texts: Tensor, device: torch.device) -> tuple[Packed, Tensor]:
    """Return these texts, with nothing for gradients."""
    lengths = data.lengths_N.cpu()[texts]
    real = torch.arange(data.tokens_NL.shape[1]) < lengths[:, None]
    tokens, positions = data.tokens_NL.cpu()[texts][real], real.nonzero()[:, 1]
    behind = (0, -len(tokens) % STEP)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    parts = (torch.nn.functional.pad(tokens, behind), torch.nn.functional.pad(positions, behind), starts)
    tokens, positions, starts = (each.int().to(device) for each in parts)
    none = torch.empty(0, dtype=torch.int32, device=device)
    packed = Packed(tokens, positions, starts, none, (none, none), (none, none), int(lengths.max()))
    return packed, data.labels_N.to(device)[texts.to(device)]


def dealt(examples: int, batch: int, rank: int, world: int) -> list[Span]:
    """Deal examples so that every rank has one: the last two batches share theirs. Raises InputError."""
    spans, left = deal(examples, batch, rank, world), examples % (batch * world)
    if not 0 < left < world:
        return spans
    if batch == 1:
        raise InputError(f"the last batch has {left} examples for {world} ranks", fix="--batch 2 or more")
    together = batch * world + left
    first = spans[-2].first
    for number, count in ((-2, together - together // 2), (-1, together // 2)):
        rows = count // world + (rank < count % world)
        spans[number] = Span(first, Shape(rows, rows * world / count))
        first += count
    return spans


def _sums(names_T: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sort rows by their names (0 to ``count``, which is none's); return the order and each name's first place."""
    ordered, order = names_T.sort(stable=True)
    wanted = torch.arange(count + 1, device=names_T.device, dtype=ordered.dtype)
    return order.int(), torch.searchsorted(ordered, wanted).int()


def layers(lengths_N: Tensor, rows: list[int], order_N: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Sort texts by length into layers, one per row of the largest batch; return each, with the batches it serves."""
    most = max(rows)
    ordered = order_N[lengths_N[order_N].argsort(stable=True)]
    found, begin = [], 0
    for layer in range(most):
        takers = [n for n, count in enumerate(rows) if (layer + 1) * count // most > layer * count // most]
        found.append((ordered[begin : begin + len(takers)], takers))
        begin += len(takers)
    return found


def balanced(lengths_N: Tensor, rows: list[int]) -> list[Tensor]:
    """Return batches of these sizes with about equal tokens: the longest texts first, each to the emptiest batch."""
    batches: list[list[int]] = [[] for _ in rows]
    totals = [0.0] * len(rows)
    for texts, takers in reversed(layers(lengths_N, rows, torch.arange(len(lengths_N)))):
        emptiest = sorted(takers, key=lambda number: totals[number])
        for text, number in zip(reversed(texts.tolist()), emptiest, strict=True):
            batches[number].append(text)
            totals[number] += int(lengths_N[text])
    return [torch.tensor(batch, dtype=torch.long) for batch in batches]


def capacities(lengths_N: Tensor, rows: list[int], fitting: list[Tensor]) -> dict[int, int]:
    """Batch size → tokens it has capacity for: a little more than the mean, and what ``fitting`` needs."""
    mean, found = float(lengths_N.double().mean()), dict[int, int]()
    for count, texts in zip(rows, fitting, strict=True):
        needed = max(count * mean + SLACK, int(lengths_N[texts].sum()), 1)
        found[count] = max(found.get(count, 0), -int(-needed // STEP) * STEP)
    return found


def sample_epoch(
    lengths_N: Tensor, rows: list[int], capacity: dict[int, int], seed: int, epoch: int
) -> list[Tensor] | None:
    """Draw an epoch's batches, none larger than its capacity; None if too many changes were needed."""
    order_N = shuffled(len(lengths_N), seed, epoch, CPU)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch + 2**32) % 2**63)
    batches: list[list[int]] = [[] for _ in rows]
    for texts, takers in layers(lengths_N, rows, order_N):
        mixed = texts[torch.randperm(len(texts), generator=generator)].tolist()
        for text, number in zip(mixed, takers, strict=True):
            batches[number].append(text)
    lengths = lengths_N.tolist()
    totals = [sum(lengths[text] for text in batch) for batch in batches]
    for _ in range(MOST_CHANGES):
        free = [capacity[count] - total for count, total in zip(rows, totals, strict=True)]
        worst = min(range(len(rows)), key=free.__getitem__)
        if free[worst] >= 0:
            steps = torch.randperm(len(rows), generator=generator).tolist()
            places: dict[int, list[int]] = {}  # batches of each size come in random order among their places
            for number in steps:
                places.setdefault(rows[number], []).append(number)
            return [torch.tensor(batches[places[count].pop()], dtype=torch.long) for count in rows]
        best = max(range(len(rows)), key=free.__getitem__)
        if not _change(batches, totals, lengths, worst, best, min(-free[worst], free[best])):
            return None
    return None


def _change(
    batches: list[list[int]], totals: list[int], lengths: list[int], full: int, empty: int, wanted: int
) -> bool:
    """Exchange two texts so that ``full`` has about ``wanted`` tokens fewer; False where none would help."""
    ours, others = batches[full], batches[empty]
    pairs = ((a, b, lengths[x] - lengths[y]) for a, x in enumerate(ours) for b, y in enumerate(others))
    fitting = [(abs(fewer - wanted), a, b, fewer) for a, b, fewer in pairs if fewer > 0]
    if not fitting:
        return False
    _, a, b, fewer = min(fitting)
    ours[a], others[b] = others[b], ours[a]
    totals[full], totals[empty] = totals[full] - fewer, totals[empty] + fewer
    return True
