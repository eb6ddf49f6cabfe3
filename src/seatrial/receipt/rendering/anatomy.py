"""The anatomy of a step as labelled lines: rates, a bar of its parts, and what waits for the GPU."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.job.units import format_bytes
from seatrial.receipt.formatting import count, figure, percent
from seatrial.receipt.model import Receipt, StepAnatomy
from seatrial.receipt.rendering.row import Row
from seatrial.receipt.rendering.stack import colour_of

#: Characters of the whole bar.
_BAR = 24

#: Facts in the order in which they are told; others are in receipt.json.
_FACTS = (
    "device",
    "parallel",
    "world",
    "optimizer",
    "parameters",
    "parameter_dtype",
    "autocast",
    "cuda_graph",
    "loader",
)


def anatomy_rows(receipt: Receipt, *, drawn: bool = False) -> list[Row]:
    """Of the first rank; of the others their rates and largest parts.

    Args:
        drawn: the page draws the bar itself.
    """
    if not receipt.anatomy:
        return []
    first, *others = receipt.anatomy
    rows = [Row("steps", _rates(first))]
    rows += [
        Row(part.words, f"{_bar(part.share)} {percent(100 * part.share):>5}  {_seconds(part.seconds_per_step)} a step")
        for part in (() if drawn else first.parts)
    ]
    rows += [Row("waits at", wait) for wait in first.waits]
    rows += [Row(f"rank {rank.rank}", _beside(rank)) for rank in others]
    facts = [f"{name.replace('_', ' ')} {first.facts[name]}" for name in _FACTS if name in first.facts]
    if facts:
        rows.append(Row("training", "; ".join(facts)))
    memory = [f"peak {format_bytes(first.peak_bytes)} of torch's allocator"] if first.peak_bytes else []
    memory += [f"tried again {count(first.alloc_retries, 'time')}"] if first.alloc_retries else []
    if memory:
        rows.append(Row("GPU memory", ", ".join(memory)))
    if first.compile_s:
        rows.append(Row("compilation", _seconds(first.compile_s)))
    return rows


class BarPart(NamedTuple):
    """A part of the first rank's steps: its colour's class, what it is, its percentage, and in words."""

    colour: str
    words: str
    pct: float
    share: str
    time: str


def bar_parts(receipt: Receipt) -> list[BarPart]:
    """Those of the first rank; [] where no steps were measured."""
    if not receipt.anatomy:
        return []
    return [
        BarPart(
            colour_of(part.id),
            part.words,
            100 * part.share,
            percent(100 * part.share),
            _seconds(part.seconds_per_step),
        )
        for part in receipt.anatomy[0].parts
    ]


def _rates(anatomy: StepAnatomy) -> str:
    told = [f"{anatomy.steps:,} step{'s' * (anatomy.steps != 1)}"]
    told += [f"{figure(round(anatomy.steps_per_s, 2))} steps/s"] if anatomy.steps_per_s else []
    told += [f"{figure(round(anatomy.examples_per_s))} examples/s"] if anatomy.examples_per_s else []
    told += [f"median {_seconds(anatomy.median_step_s)}"] if anatomy.median_step_s else []
    return ", ".join(told)


def _beside(anatomy: StepAnatomy) -> str:
    parts = sorted(anatomy.parts, key=lambda part: -part.share)[:3]
    return f"{_rates(anatomy)}; " + ", ".join(f"{part.words} {percent(100 * part.share)}" for part in parts)


def _bar(share: float) -> str:
    filled = round(_BAR * share)
    return "█" * filled + "·" * (_BAR - filled)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
