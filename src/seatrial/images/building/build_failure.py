"""What a failed build's output means: the step, the reason in one sentence, the next command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.errors import ImageError
from seatrial.findings.catalogue import AT_BUILD
from seatrial.findings.known import mid_sentence
from seatrial.findings.match import first_in
from seatrial.job.plan import ImagePlan

#: BuildKit's plain progress numbers every step and prefixes a step's output with the seconds it has run.
_PREFIX = re.compile(r"^(#\d+ )?(\d+\.\d+ )?")
_NOISE = re.compile(r"DONE [\d.]+s$|\.\.\.$|-+$|transferring |[━╸╺ ]+ [\d.]+/[\d.]+ .?B ")

#: Lines that only repeat that a command failed.
_REPETITION = re.compile(r"executor failed running|did not complete successfully|failed to solve|building at STEP")

_STEPS = (
    (re.compile(r"pip install --no-deps --no-index"), "installing the recipes"),
    (re.compile(r"pip install"), "installing the packages with pip"),
    (re.compile(r"apt-get"), "installing Debian packages"),
    (re.compile(r"python3 -m venv"), "creating the virtual environment"),
    (re.compile(r"COPY|CACHED"), "copying the packages"),
)


#: pip's list of who wants what, behind the line that says that they contradict each other.
_SIDES = re.compile(r"^The conflict is caused by:\n(?P<sides>(?: {2,}.*\n?)+)", re.MULTILINE)


def readable(line: str) -> str:
    """A line of build output without BuildKit's numbering; "" for one that says nothing."""
    text = _PREFIX.sub("", line.rstrip())
    return "" if _NOISE.match(text.strip()) else text


def explain(lines: Sequence[str], *, image: ImagePlan, engine: str) -> ImageError:
    """The error to raise, from the last lines of a failed build, as ``readable`` gives them."""
    text = "\n".join(lines)
    step = next((doing for line in reversed(lines) if (doing := step_in_words(line))), None)
    where = f"Building {image.tag} failed" + (f" while {step}" if step else "")
    said = _last_meaningful(lines)
    match = first_in(text, AT_BUILD)
    if match is None:
        return ImageError(f"{where}: {said}", run=f"{engine} info")
    conflict = _SIDES.search(text)
    finding = match.known.finding(
        values={
            **match.values,
            "engine": engine,
            "Engine": engine.capitalize(),
            "base": image.base or "",
            "sides": _one_line(conflict["sides"]) if conflict else "",
        }
    )
    cause = f"{finding.cause} (the build said: {said})"
    return ImageError(f"{where}: {mid_sentence(finding.message)}", cause=cause, run=finding.fix)


def step_in_words(line: str) -> str | None:
    """What is being done, from a line that names a step of the Dockerfile."""
    if _REPETITION.search(line) or re.match(r" > \[|\[.*\] |STEP ", line):
        return next((words for pattern, words in _STEPS if pattern.search(line)), None)
    return None


def _last_meaningful(lines: Sequence[str]) -> str:
    """The last line that a tool marked as an error, else the last that is more than repetition."""
    telling = [line.strip() for line in lines if line.strip() and not _REPETITION.search(line)]
    marked = [line for line in telling if re.match(r"(ERROR|Error|error|E): ", line)]
    return (marked or telling or ["no output"])[-1]


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
