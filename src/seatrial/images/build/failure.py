"""Explain a failed build from its output: the step, the reason in one sentence, the next command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.errors import ImageError
from seatrial.findings.catalogue import AT_BUILD, OF_A_BUILD, by_id, mid_sentence, plain
from seatrial.findings.match import Match, first_in
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.job.plan import ImagePlan
from seatrial.system.names import REDACTED, SECRET_TEXT

#: BuildKit's plain progress numbers every step and prefixes a step's output with the seconds it has run.
_PREFIX = re.compile(r"^(#\d+ )?(\d+\.\d+ )?")
_NOISE = re.compile(r"DONE [\d.]+s$|\.\.\.$|-+$|transferring |[━╸╺ ]+ [\d.]+/[\d.]+ .?B ")

#: Messages of the C library.
_NO_NAMES = re.compile(r"Temporary failure in name resolution|Name or service not known")

_NUMBER = re.compile(r"#(\d+) ")
_STEP = re.compile(r"(?:\[\d+/\d+\] )?S(?:TEP|tep) \d+/\d+ ?:")

#: Entry → entries that name the cause better where both are shown: an image that cannot be pulled.
_BASE_FIRST = dict.fromkeys(
    ("host-not-resolved", "registry-name-not-resolved", "registry-unreachable"), ("base-image-missing",)
)

#: The fix where one of these is shown: neither a login nor another name helps.
_WITHOUT_REGISTRY = "seatrial run --on local …   # without a container, until the registry answers"

#: Fixes of failures in a build whose words have another fix in a run.
_IN_A_BUILD = {
    "read-only-root": "sudo dmesg | tail   # the engine's disk became read-only: see why, then restart the engine"
}

#: Fix for a module whose package is unknown.
NAME_THE_PACKAGE = "write the package that has this module into requirements.txt, or bring the module into the project"

#: Lines that only repeat that a command failed.
_REPETITION = re.compile(
    r"executor failed running|did not complete successfully|failed to solve|: while running runtime: exit status"
    r"|^The command '.*' returned a non-zero code"
)

#: BuildKit's picture of the Dockerfile around what failed, and the line that names the place.
_FRAME = re.compile(r"\s*\d+ \|( |$)|[^\s:]+:\d+$")

#: BuildKit's words before the reason, once for each of its parts that the reason has passed.
_PASSED_ON = re.compile(
    r"^(?:(?:ERROR|Error): |failed to (?:build|solve|compute cache key): |failed to calculate checksum of ref \S+: "
    r"|rpc error: code = \w+ desc = |building at STEP \".*\": )+"
)

#: Marks of an error: by pip, apt, git, a compiler at a line of a file, make.
_MARKED = re.compile(r"(?:\S+: )*(?:(?:fatal )?(?i:error)|E|fatal|\*\*\*)(?:: | )")

#: Lines that name an action without its result: a second build of one step prints nothing else.
_HEADING = re.compile(r"(?:> )?\[[^\]]*\] |building with ")

_STEPS = (
    (re.compile(r"pip install --no-deps --no-index"), "installing the recipes"),
    (re.compile(r"source=framework,"), "installing the framework with pip"),
    (re.compile(r"pip install"), "installing the packages with pip"),
    (re.compile(r"apt-get"), "installing Debian packages"),
    (re.compile(r"python3 -m venv"), "creating the virtual environment"),
    (re.compile(r"COPY|CACHED|layer.py mirror"), "copying the packages"),
)


#: The package that pip was building when it failed.
_WHEEL_OF = re.compile(r"Failed building wheel for ([\w.-]+)|Failed to build [`']?([\w.-]+)")

#: A line of a constraints file, as pip names it.
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (?P<name>[\w.-]+)==(?P<version>\S+)")

#: pip's list of the contradicting requirements, behind its error line.
_SIDES = re.compile(r"^The conflict is caused by:\n(?P<sides>(?: {2,}.*\n?)+)", re.MULTILINE)


def readable(line: str) -> str:
    """Return a line of build output without BuildKit's numbering; "" for one without content."""
    text = SECRET_TEXT.sub(REDACTED, _text(line.rstrip()))
    return "" if _NOISE.match(text.strip()) else text


def explain(lines: Sequence[str], *, image: ImagePlan, engine: str) -> ImageError:
    """Return the error to raise, from the last lines of a failed build, as the engine or ``readable`` gives them."""
    step = next((doing for line in reversed(lines) if (doing := step_in_words(_text(line)))), None)
    lines = failing_step(lines)
    where = f"Building {image.tag} failed" + (f" while {step}" if step else "")
    if (cause := first_cause(lines)) is None:
        run = "seatrial plan …   # what is installed, and why" if step else f"seatrial doctor --on {engine}"
        return ImageError(f"{where}: {last_meaningful(lines)}", run=run)
    match, message_line = cause
    conflict = _SIDES.search("\n".join(lines))
    known = {**match.values, "engine": engine, "Engine": engine.capitalize(), "base": image.base or ""}
    known["reference"] = match.values.get("reference") or known["base"]
    known["sides"] = _sides(conflict["sides"]) if conflict else ""
    finding = match.known.finding(values=known)
    guess = guess_among(image.warnings, match.values.get("what", ""))
    if match.known.id == "package-missing" and guess:
        return ImageError(f"{where}: {mid_sentence(finding.message)}", cause=guess, run=NAME_THE_PACKAGE)
    building = filter(None, map(_WHEEL_OF.search, lines if "package" not in match.values else ()))
    package = next((found[1] or found[2] for found in building), None)
    message = mid_sentence(finding.message) + (f" (needed by {package})" if package else "")
    cause_text = f"{finding.cause} (the build printed: {message_line})"
    unreachable = [by_id(id) for id in _BASE_FIRST if match.known.id == "base-image-missing"]
    if any(entry.values_in(line, plain(line)) is not None for entry in unreachable for line in lines):
        return ImageError(f"{where}: {message}", cause=cause_text, run=_WITHOUT_REGISTRY)
    return ImageError(f"{where}: {message}", cause=cause_text, run=_IN_A_BUILD.get(match.known.id, finding.fix))


def guess_among(warnings: Sequence[str], package: str) -> str | None:
    """Return the plan's warning about a package that it guessed from an import."""
    return next((warning for warning in warnings if warning.startswith(f"{package} is a guess: ")), None)


def failing_step(lines: Sequence[str]) -> list[str]:
    """Return the lines of the step that failed, without BuildKit's numbers; all lines if none is marked."""
    if numbers := [found[1] for line in lines if (found := re.match(r"#(\d+) (?:[\d.]+ )?ERROR: ", line))]:
        own = [line for line in lines if (found := _NUMBER.match(line)) is None or found[1] == numbers[-1]]
        return [text for line in own if (text := readable(line))]
    texts = [text for line in lines if (text := readable(line))]
    starts = [at for at, text in enumerate(texts) if _STEP.match(text)]
    last = texts[starts[-1] :] if starts else texts
    return last if first_cause(last) else texts


def first_cause(lines: Sequence[str]) -> tuple[Match, str] | None:
    """Return (the known failure that the others follow from, the line that shows it); None if none is known.

    The first counts. Lines that only report a failure come last, warnings before them: pip retries, often with success.
    """
    found: list[tuple[int, int, Match, str]] = []
    for at, line in enumerate(lines):
        match = first_in(line, AT_BUILD)
        if match is None and _NO_NAMES.search(line):
            match = Match(by_id("host-not-resolved"), {})
        elif match and match.known.id.startswith("package-") and _needs_other_python(match, lines):
            match = Match(by_id("other-python-needed"), {"package": match.values["what"]})
        if match:
            is_warning = re.match(r"\s*(?:WARNING|W|warning|DEPRECATION|debconf):", line) and "total=0" not in line
            known = match.known.id in OF_A_BUILD
            weight = 2 + OF_A_BUILD.index(match.known.id) if known else int(bool(is_warning))
            found.append((weight, at, match, line.strip()))
    ids = {match.known.id for _, _, match, _ in found}
    for _, at, match, message_line in sorted(found, key=lambda row: row[:2]):
        repeats = match.known.id != "build-step-killed" and _REPETITION.search(message_line)
        if not repeats and not ids.intersection(_BASE_FIRST.get(match.known.id, ())):
            return match, _informative_line(message_line, lines, at)
    return (found[0][2], _informative_line(found[0][3], lines, found[0][1])) if found else None


def _needs_other_python(match: Match, lines: Sequence[str]) -> bool:
    """Return True if pip left out the requested version because it is for another Python."""
    version = re.search(r"==\s*([\w.]+)", match.values.get("what", ""))
    left_out = next((line for line in lines if "require a different python version" in line), "")
    return version is not None and f" {version[1]} Requires-Python" in left_out


def _informative_line(message_line: str, lines: Sequence[str], at: int) -> str:
    """Return the line that shows the cause; if pip repeats it as an error, that error."""
    if not message_line.startswith(("WARNING:", "ERROR: Could not find a version")):
        return message_line
    return next((line.strip() for line in lines[at + 1 :] if re.match(r"\s*(ERROR|E): ", line)), message_line)


def _text(line: str) -> str:
    return _PREFIX.sub("", re.sub(r"\x1b\[[0-9;]*m", "", line))


def step_in_words(line: str) -> str | None:
    """Describe the current action from a line that names a step of the Dockerfile."""
    if _REPETITION.search(line) or re.match(r" > \[|\[.*\] |STEP ", line):
        return next((words for pattern, words in _STEPS if pattern.search(line)), None)
    return None


def last_meaningful(lines: Sequence[str]) -> str:
    """Return the last line that a tool marked as an error, else the last that repeats nothing, else the last."""
    lines = [line for line in lines if line.strip() and not _FRAME.match(line)]
    informative = [line.strip() for line in lines if not _REPETITION.search(line)]
    marked = [line for line in informative if _MARKED.match(line)]
    message_line = marked or [line for line in informative if not _HEADING.match(line)] or lines
    return _PASSED_ON.sub("", message_line[-1].strip()) if message_line else "the engine's log ends without a reason"


def _sides(text: str) -> str:
    """Join the contradicting requirements on one line; the framework's layer is a constraint for pip."""
    sides = []
    for line in filter(None, map(str.strip, text.splitlines())):
        below = _CONSTRAINT.match(line)
        if below and FRAMEWORK.match(below["name"]):
            if f"The user requested {below['name']}" in text:
                continue  # in other words, it is there already
            line = f"the image has {below['name']}=={below['version']}"
        sides.append(line)
    return "; ".join(sides)
