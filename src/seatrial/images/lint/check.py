"""Check a user's own Dockerfile for what goes wrong on GPUs; nothing is built.

General rules are hadolint's and ``docker build --check``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.images.lint import base_rules, gpu_rules, package_rules
from seatrial.images.lint.dockerfile import Dockerfile, Remark, read_dockerfile
from seatrial.system.project_files import is_there, read_bytes

#: Limits far above usual files; some rules' time grows with lines times stages.
_MAX_BYTES, _MOST_LINES, _MOST_STAGES = 200_000, 5000, 200

Rule = Callable[[Dockerfile], Iterator[Remark]]

RULES: tuple[Rule, ...] = (*gpu_rules.RULES, *base_rules.RULES, *package_rules.RULES)


def check_dockerfile(path: Path) -> list[Remark]:
    """Return every remark, in the order of lines. Raises UsageError for a file that is not a Dockerfile."""
    if not is_there(path):
        raise UsageError(f"File not found: {path}", run=f"ls {path.parent}")
    text = read_bytes(path, inside=None, limit_bytes=_MAX_BYTES, refusal=UsageError).decode("utf-8", "replace")
    if text.count("\n") > _MOST_LINES:
        raise UsageError(f"{path} has more than {_MOST_LINES} lines", run=f"wc -l {path}")
    if "\0" in text:
        raise UsageError(
            f"{path} is not text in UTF-8, in which a Dockerfile is written",
            run=f"iconv -f UTF-16 -t UTF-8 {path} > {path}.utf8   # where it was written by PowerShell",
        )
    file = read_dockerfile(text)
    if not file.stages:
        raise UsageError(f"{path} is not a Dockerfile: it has no FROM", run=f"head {path}")
    if nameless := [each.line for each in file.instructions if each.name == "FROM" and not each.value.strip()]:
        raise UsageError(f"{path}:{nameless[0]}: FROM names no image", run=f"sed -n {nameless[0]}p {path}")
    if len(file.stages) > _MOST_STAGES:
        raise UsageError(f"{path} has more than {_MOST_STAGES} stages", run=f"grep -c FROM {path}")
    return sorted({remark for rule in RULES for remark in rule(file)}, key=lambda remark: (remark.line, remark.id))
