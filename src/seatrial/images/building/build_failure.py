"""What a failed build's output means: the step, the reason in one sentence, the next command. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.errors import ImageError
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


@dataclass(frozen=True)
class _Rule:
    """One known reason; groups of ``pattern`` are named in the templates, as are ``base`` and ``engine``."""

    pattern: re.Pattern[str]
    message: str
    cause: str | None
    run: str


def _rule(pattern: str, message: str, run: str, cause: str | None = None) -> _Rule:
    return _Rule(re.compile(pattern, re.MULTILINE), message, cause, run)


#: First match wins: what makes other steps fail comes before what it makes them say. The texts are those of pip 23 to
#: 25, apt 2.6, Docker 20.10 to 28 and Podman 4; tests/recorded/images has samples.
_RULES = (
    _rule(
        r"No space left on device|no space left on device",
        "no space is left on {engine}'s disk",
        "{engine} system df; {engine} builder prune",
    ),
    _rule(
        r"network\.host is not allowed",
        "the builder is not allowed to use the host's network",
        "docker buildx use default",
        "image.build_network is host, but the current buildx builder was created without that entitlement",
    ),
    _rule(
        r"^ > \[internal\] load metadata for |creating build container|pull access denied",
        "the base image {base} does not exist locally and cannot be pulled",
        "{engine} pull {base}",
    ),
    _rule(
        r"python3: (not found|command not found)|\"python3\": executable file not found",
        "the base image {base} has no python3",
        'in seatrial.toml: [image] system_packages = ["python3", "python3-venv"], or a base with Python',
    ),
    _rule(
        r"ensurepip is not available|No module named venv",
        "the base image's Python cannot create virtual environments",
        'in seatrial.toml: [image] system_packages = ["python3-venv"]',
    ),
    _rule(
        r"apt-get: (not found|command not found)",
        "the base image {base} has no apt-get",
        'in seatrial.toml: [image] base = "python:3.11-slim-bookworm"',
        "Debian packages were requested, but the base is not Debian or Ubuntu",
    ),
    _rule(
        r"^E: Unable to locate package (?P<package>\S+)",
        "Debian has no package {package} for this base image",
        "change image.system_packages; https://packages.debian.org/search?keywords={package}",
    ),
    _rule(
        r"^The conflict is caused by:\n(?P<sides>(?: {2,}.*\n?)+)",
        "the requirements contradict each other: {sides}",
        "relax one of the two in requirements.txt, pyproject.toml or image.requirements",
    ),
    _rule(
        r"(Failed building wheel for|Could not build wheels for|Failed to build) (?P<package>[\w.-]+)",
        "{package} has no wheel for this image's Python and did not compile",
        'in seatrial.toml: [image] system_packages = ["build-essential", "python3-dev"]',
    ),
    _rule(
        r"SSLError|CERTIFICATE_VERIFY_FAILED|confirming the ssl certificate|certificate verify failed",
        "the package index's certificate is not trusted inside the build",
        'in seatrial.toml: [image] ca_bundle = "/path/to/company-ca.pem"',
        "often a proxy that signs with its own certificate authority",
    ),
    _rule(
        r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError|"
        r"Temporary failure resolving|Could not connect to",
        "the build cannot reach the package index",
        'in seatrial.toml: [image] build_network = "host", or index_url of a mirror',
    ),
    _rule(
        r"satisfies the requirement (?P<what>\S+).*\(from versions: none\)",
        "the package index has no {what} for this image's Python",
        "pip index versions {what}",
    ),
    _rule(
        r"satisfies the requirement (?P<what>.+?) \(from versions: .*?(?P<newest>[^,()]+)\)$",
        "the package index has no {what} for this image's Python",
        "change the version",
        "the newest is {newest}",
    ),
    _rule(
        r"exit code: 137|exit status 137|^Killed$",
        "the kernel killed the step: out of memory",
        "free -h",
    ),
)


def readable(line: str) -> str:
    """A line of build output without BuildKit's numbering; "" for one that says nothing."""
    text = _PREFIX.sub("", line.rstrip())
    return "" if _NOISE.match(text.strip()) else text


def explain(lines: Sequence[str], *, image: ImagePlan, engine: str) -> ImageError:
    """The error to raise, from the last lines of a failed build, as ``readable`` gives them."""
    text = "\n".join(lines)
    step = next((doing for line in reversed(lines) if (doing := step_in_words(line))), None)
    where = f"Building {image.tag} failed" + (f" while {step}" if step else "")
    known = {"base": image.base or "", "engine": engine}
    for rule in _RULES:
        if match := rule.pattern.search(text):
            words = known | {name: _one_line(group) for name, group in match.groupdict().items()}
            return ImageError(
                f"{where}: {rule.message.format(**words)}",
                cause=rule.cause.format(**words) if rule.cause else _last_meaningful(lines),
                run=rule.run.format(**words),
            )
    return ImageError(f"{where}: {_last_meaningful(lines)}", run=f"{engine} info")


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
