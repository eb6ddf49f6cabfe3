"""A reader that starts before its writer has ended."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from seatrial.pipelines.compose.lines import Lines
from seatrial.pipelines.compose.order import Wait, missing_waits
from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.compose.remark import Edit, Remark
from seatrial.pipelines.compose.service import COMPLETED


def _starts_too_early(file: ComposeFile) -> Iterator[Remark]:
    for wait in missing_waits(file):
        way = ("depends_on", wait.writer) if wait.written else ()
        place = file.place(wait.reader, *way)
        says = "depends_on alone waits only until it has started" if wait.written else "nothing makes it wait"
        yield Remark(
            place,
            "starts-too-early",
            "warning",
            f"{wait.why}, and starts before {wait.writer} has ended: {says}",
            f"depends_on: {{{wait.writer}: {{condition: {COMPLETED}}}}}",
            tuple(_edits(file.lines, wait)),
        )


def _edits(lines: Lines, wait: Wait) -> Iterator[Edit]:
    """``depends_on: [a, b]`` rewritten as a mapping, in block style; a mapping gets the condition."""
    node = lines.node("services", wait.reader, "depends_on")
    place = lines.place("services", wait.reader, "depends_on")
    text = next(each.text for each in lines.documents if each.path == place.file).splitlines()
    if node is None:
        service = lines.node("services", wait.reader)
        at = lines.place("services", wait.reader)
        if not isinstance(service, yaml.MappingNode) or service.flow_style or not service.value:
            return
        indent = " " * service.start_mark.column
        new = (f"{indent}depends_on:", f"{indent}  {wait.writer}:", f"{indent}    condition: {COMPLETED}")
        yield Edit(at, at.line + 1, at.line, new)
        return
    if isinstance(node, yaml.SequenceNode):
        names = [str(entry.value) for entry in node.value if isinstance(entry, yaml.ScalarNode)]
        line = text[place.line - 1]
        indent = " " * (len(line) - len(line.lstrip()))
        block = [f"{indent}depends_on:"]
        for name in names:
            block += [f"{indent}  {name}:", f"{indent}    condition: {_condition(name, wait)}"]
        last = node.end_mark.line if node.flow_style else max(entry.end_mark.line for entry in node.value)
        yield Edit(place, place.line, last + 1, tuple(block))


def _condition(name: str, wait: Wait) -> str:
    return COMPLETED if name == wait.writer else "service_started"


RULES = (_starts_too_early,)
