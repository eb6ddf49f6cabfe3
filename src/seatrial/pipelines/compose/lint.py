"""What hurts in a Compose file that trains on GPUs, line by line. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.remark import Remark
from seatrial.pipelines.compose.rules import gpus, order, ports, running

Rule = Callable[[ComposeFile], Iterator[Remark]]

RULES: tuple[Rule, ...] = (*order.RULES, *gpus.RULES, *ports.RULES, *running.RULES)


def check_compose(file: ComposeFile) -> list[Remark]:
    """Every remark, in the order of lines."""
    remarks = [remark for rule in RULES for remark in rule(file)]
    return sorted(dict.fromkeys(remarks), key=lambda each: (str(each.place.file), each.place.line, each.id))
