"""Check a user's own Dockerfile for GPU mistakes. General rules are hadolint's and ``docker build --check``'s."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.images.lint import base_rules, gpu_rules
from seatrial.images.lint.dockerfile import Dockerfile, Remark, read_dockerfile, remark
from seatrial.job.flags import read_table
from seatrial.job.startable import is_shell
from seatrial.stack.facts import cuda_images
from seatrial.stack.machine import TargetMachine
from seatrial.stack.rules import image_problems
from seatrial.system.project_files import is_there, read_bytes

#: Limits far above usual files; some rules' time grows with lines times stages.
_MAX_BYTES, _MOST_LINES, _MOST_STAGES = 200_000, 5000, 200

#: Source: docs.docker.com/reference/dockerfile.
_INSTRUCTIONS = read_table("docker.json")["instructions"]

Rule = Callable[[Dockerfile], Iterator[Remark]]

RULES: tuple[Rule, ...] = (*gpu_rules.RULES, *base_rules.RULES)


def check_dockerfile(path: Path) -> list[Remark]:
    """Return every remark, in the order of lines. Raises UsageError for a file that is not a Dockerfile."""
    if not is_there(path):
        raise UsageError(f"File not found: {path}", run=f"ls {path.parent}")
    text = read_bytes(path, inside=None, limit_bytes=_MAX_BYTES, refusal=UsageError).decode("utf-8", "replace")
    if text.count("\n") > _MOST_LINES:
        raise UsageError(f"{path} has more than {_MOST_LINES} lines", run=f"wc -l {path}")
    if "\0" in text:
        run = f"iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8   # where it was written by PowerShell"
        raise UsageError(f"{path} is not UTF-8 text, as a Dockerfile must be", run=run)
    file = read_dockerfile(text)
    refused = list(_unknown(file))
    if is_shell(path) or len(refused) * 2 > len(file.instructions):
        kind = "it is a shell script" if is_shell(path) else refused[0].message
        raise UsageError(f"{path} is not a Dockerfile: {kind}", run=f"head {path}")
    if not file.instructions:
        raise UsageError(f"{path} has no instruction: a Dockerfile begins with FROM", run=f"${{EDITOR:-vi}} {path}")
    if is_part := not file.stages:
        file = read_dockerfile(f"FROM scratch\n{text}")
    if nameless := [each.line for each in file.instructions if each.name == "FROM" and not each.value.strip()]:
        raise UsageError(f"{path}:{nameless[0]}: FROM names no image", run=f"sed -n {nameless[0]}p {path}")
    if len(file.stages) > _MOST_STAGES:
        raise UsageError(f"{path} has more than {_MOST_STAGES} stages", run=f"grep -c FROM {path}")
    found = {each for rule in RULES for each in rule(file)}
    if is_part:
        found = {replace(each, line=each.line - 1) for each in found if each.line > 1 and each.id != "root"}
        found |= {remark(1, "no-from", image=cuda_images()[-1].tag("base"))}
    return sorted({*refused, *found}, key=lambda each: (each.line, each.id))


def _unknown(file: Dockerfile) -> Iterator[Remark]:
    """Find unknown instructions."""
    for each in (each for each in file.instructions if each.name not in _INSTRUCTIONS):
        close = difflib.get_close_matches(each.name, _INSTRUCTIONS, n=1)
        fix = f"{close[0]}{each.raw}" if close else "end the line above with \\, or write RUN before it"
        yield remark(each.line, "unknown-instruction", name=each.name.lower(), fix=fix)


def image_warnings(image: str, machine: TargetMachine | None, *, pulled: bool) -> Iterator[str]:
    """Yield what an image's name shows: a tag that does not exist, a framework without code for the machine's GPUs.

    ``machine``: None without a GPU. ``pulled``: the image is not on this machine yet.
    """
    remarks = base_rules.dead_tags(read_dockerfile(f"FROM {image}")) if pulled else ()
    yield from (f"{each.message}; {each.fix.replace('FROM', 'use')}" for each in remarks)
    for broken in image_problems(image, machine) if machine else ():
        yield f"{image} is too old for the GPU: {broken.needs}, but {broken.has}"
