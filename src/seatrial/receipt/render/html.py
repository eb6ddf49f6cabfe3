"""The receipt as one HTML file: no script, nothing loaded, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from seatrial.receipt.model import Receipt
from seatrial.receipt.render.pages import PACKAGE, render_page
from seatrial.receipt.section import Bars, Block, Criterion, Log, Rows, Table, Times, Verdicts
from seatrial.receipt.summary import exit_words, headline, tiles, warnings

#: Criteria in a reader's order; those that were not judged are folded away.
_ORDER = ("fail", "warning", "pass")


def render(receipt: Receipt, *, embedded: bool = False) -> str:
    """Return the whole page.

    Args:
        embedded: without heading, plots and the end of the logs, for a page that has them.
    """
    return render_page(
        PACKAGE,
        "receipt.html",
        receipt=receipt,
        embedded=embedded,
        headline=headline(receipt),
        judged_at=datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        unmet=[criterion for criterion in receipt.criteria if criterion.weight == "fail"],
        exit_words=exit_words(receipt),
        warnings=warnings(receipt),
        words=receipt.outcome.words.partition("; not met: ")[0],  # the badge is followed by unmet criteria
        tiles=tiles(receipt),
        sections=list(_sections(receipt, embedded)),
        by_weight=_by_weight,
    )


def _sections(receipt: Receipt, embedded: bool) -> Iterator[tuple[str, list[tuple[str, Block]]]]:
    """Yield (title, (kind, block) pairs); a block with a title of its own becomes a section."""
    for section, blocks in receipt.sections():
        if embedded and not section.embedded:
            continue
        own = [(block.title, block) for block in blocks if isinstance(block, (Bars, Rows)) and block.title]
        together = [block for block in blocks if block not in [each for _, each in own]]
        parts: list[tuple[str, list[Block]]] = [(section.title, together)]
        parts += [(title, [block]) for title, block in own]
        for title, each in parts:
            if drawn := [(type(block).__name__, block) for block in each if not _is_empty(block)]:
                yield title, drawn


def _is_empty(block: Block) -> bool:
    if isinstance(block, (Rows, Table)):
        return not block.rows
    return not block.lines if isinstance(block, Log) else isinstance(block, Times) and not block.entries


def _by_weight(block: Verdicts) -> Sequence[Criterion]:
    """Return judged criteria, failed ones first; within one weight in their own order."""
    return [criterion for weight in _ORDER for criterion in block.criteria if criterion.weight == weight]
