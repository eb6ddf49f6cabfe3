"""The report: for a terminal, as data (``--json``, a stable schema) and as Markdown for an issue, secrets redacted."""

from __future__ import annotations

import json
import platform
import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from seatrial import __version__
from seatrial.doctor.check import Layer, Status
from seatrial.doctor.examine import Result
from seatrial.doctor.machine import Machine
from seatrial.errors import EngineUnavailableError
from seatrial.findings.finding import CAUSE, FIX, Finding
from seatrial.system.names import Names, names_of

#: Raised when a key changes its meaning or goes; new keys do not raise it.
SCHEMA_VERSION = 1

EXIT_OK, EXIT_WARNINGS, EXIT_BROKEN = 0, 1, 2

#: Names of variables whose values are of use in a report.
TELLING = re.compile(r"^(CUDA|NVIDIA|NCCL|DOCKER|CONTAINER|PODMAN|SEATRIAL|LD_LIBRARY_PATH|KUBECONFIG|XDG_|TORCH|TF_)")


def exit_code(results: Sequence[Result]) -> int:
    """0 ok, 1 warnings (or something that could not be seen), 2 broken."""
    statuses = {result.verdict.status for result in results}
    if "broken" in statuses:
        return EXIT_BROKEN
    return EXIT_WARNINGS if statuses & {"warning", "unknown"} else EXIT_OK


def to_dict(results: Sequence[Result]) -> dict[str, Any]:
    """What ``--json`` prints."""
    broken = next((result.check.id for result in results if result.verdict.status == "broken"), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "seatrial": __version__,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": exit_code(results),
        "first_broken": broken,
        "checks": [_check(result) for result in results],
    }


def _check(result: Result) -> dict[str, Any]:
    return {
        "id": result.check.id,
        "layer": result.check.layer,
        "title": result.check.title,
        "status": result.verdict.status,
        "line": result.verdict.line,
        "blocked_by": result.blocked_by,
        "seconds": round(result.seconds, 3),
        "findings": [finding.to_dict() for finding in result.verdict.findings],
    }


def full(results: Sequence[Result], machine: Machine, *, with_names: bool = False) -> dict[str, Any]:
    """What ``--report`` writes: the results and the facts they rest on, without secrets.

    Args:
        with_names: user, host and home folder stay in.
    """
    driver, inventory = machine.driver, machine.inventory
    facts = {
        "system": {
            "kernel": machine.kernel,
            "machine": platform.machine(),
            "python": platform.python_version(),
            "os_release": machine.os_release,
        },
        "bus": [gpu._asdict() for gpu in machine.gpus_on_bus],
        "driver": {
            "version": driver.version,
            "nodes": [node._asdict() for node in (*driver.control, *driver.gpus.values(), *driver.mig_caps)],
            "libraries": [library._asdict() for library in driver.libraries],
            "missing": list(driver.missing),
        },
        "nvml": {**inventory._asdict(), "gpus": [gpu._asdict() for gpu in inventory.gpus]},
        "health": [gpu._asdict() for gpu in machine.health],
        "docker": _info(machine.docker_info, with_names),
        "podman": _info(machine.podman_info, with_names),
        "environment": _environment(machine.environ),
    }
    names = names_of(machine.environ, hosts=_engine_hosts(machine))
    if with_names:
        names = Names(secrets=names.secrets)
    return names.scrub({**to_dict(results), "facts": facts})


def _info(info: dict[str, Any] | EngineUnavailableError | None, with_names: bool) -> Any:
    """What the engine says of itself, the name of its machine aside."""
    if isinstance(info, EngineUnavailableError):
        return info.message
    if info is None or with_names:
        return info
    host = info.get("host")
    about = {"host": {key: value for key, value in host.items() if key != "hostname"}} if isinstance(host, dict) else {}
    return {**{key: value for key, value in info.items() if key != "Name"}, **about}


def _engine_hosts(machine: Machine) -> list[str]:
    """The engines' machines, which need not be this one: as they call themselves (Docker in "Name", Podman in "host"),
    and as they are addressed."""
    docker, podman = machine.docker_info, machine.podman_info
    host = podman.get("host") if isinstance(podman, dict) else None
    found = [docker.get("Name") if isinstance(docker, dict) else None]
    found += [host.get("hostname") if isinstance(host, dict) else None]
    found += [urlsplit(machine.environ.get(variable, "")).hostname for variable in ("DOCKER_HOST", "CONTAINER_HOST")]
    return [name for name in found if isinstance(name, str)]


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(environ.items()) if TELLING.match(name)}


WIDTH = 110

#: Characters of a command that stands on one line.
MAX_COMMAND = 160

_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("[✓]", "green"),
    "warning": ("[!]", "yellow"),
    "broken": ("[✗]", "bold red"),
    "unknown": ("[?]", "magenta"),
    "skipped": ("[-]", "dim"),
    "blocked": ("[·]", "dim"),
}

#: A healthy link with something to know about it.
_NOTE = ("[i]", "cyan")

_COUNTED: tuple[tuple[Status, str, str], ...] = (
    ("ok", "ok", "ok"),
    ("warning", "warning", "warnings"),
    ("broken", "broken", "broken"),
    ("unknown", "unknown", "unknown"),
)

#: For terminals that print nothing but ASCII.
_ASCII = str.maketrans({"✓": "v", "✗": "x", "·": ".", "…": "..."})


def print_layer(layer: Layer, results: Sequence[Result], console: Console, *, verbose: bool = False) -> None:
    """One layer: its title, then its links. Links that do not apply here are left out unless ``verbose``."""
    shown = [result for result in results if verbose or result.verdict.status != "skipped"]
    if shown:
        _print(console, Text(layer.title, style="bold"))
    blocked = [result for result in shown if result.verdict.status == "blocked"]
    for result in shown:
        if result.verdict.status != "blocked" or verbose:
            for line in _lines(result, min(WIDTH, console.width)):
                _print(console, line)
    if blocked and not verbose:
        mark, style = _MARKS["blocked"]
        by = ", ".join(dict.fromkeys(str(result.blocked_by) for result in blocked))
        _print(console, Text(f"  {mark} {len(blocked)} not checked, blocked by {by}", style=style))


def print_summary(results: Sequence[Result], console: Console, seconds: float) -> None:
    """The first broken link and its fix, or that there is none; above the links, as the answer to what was asked."""
    counts = {status: sum(result.verdict.status == status for result in results) for status in _MARKS}
    broken = next((result for result in results if result.verdict.status == "broken"), None)
    said = ", ".join(
        f"{counts[status]} {one if counts[status] == 1 else more}" for status, one, more in _COUNTED if counts[status]
    )
    if broken is None:
        words = "No failed check" if not counts["unknown"] else "No failed check seen"
        style = "bold green" if not counts["unknown"] else "bold"
        _print(console, Text(f"{words}: {said} ({seconds:.1f} s)", style=style))
    else:
        _print(console, Text(f"First failed check: {broken.check.id}: {broken.verdict.line}", style="bold red"))
        fix = broken.verdict.findings[0].fix if broken.verdict.findings else None
        if fix:
            _print(console, Text(f"  {FIX}: ", style="bold").append(fix, style="not bold"))
        _print(console, Text(f"  {said} ({seconds:.1f} s)", style="dim"))
    _print(console, Text())


def _lines(result: Result, width: int) -> Iterator[Text]:
    healthy = result.verdict.status == "ok"
    mark, style = _NOTE if healthy and result.verdict.findings else _MARKS[result.verdict.status]
    yield from _wrapped(result.verdict.line, f"  {mark} ", width, "" if healthy else style, style)
    for finding in result.verdict.findings:
        yield from finding_lines(finding, width, said=result.verdict.line)


def finding_lines(finding: Finding, width: int, *, said: str = "", indent: str = "      ") -> Iterator[Text]:
    """Cause, evidence and fix. The command is never broken across lines: it is there to be copied."""
    if finding.message != said:
        yield from _wrapped(finding.message, indent, width, "bold")
    if finding.cause:
        yield from _wrapped(finding.cause, f"{indent}{CAUSE} ", width)
    for line in finding.evidence:
        for piece in filter(str.strip, line.splitlines()):
            yield from _wrapped(piece, f"{indent}seen  ", width, "dim")
    if finding.fix:
        fix = finding.fix
        if len(fix) > MAX_COMMAND:  # a shell goes on behind &&, so the lines can be copied as they are
            fix = fix.replace(" && ", f" &&\n{' ' * len(indent)}      ")
        yield Text(f"{indent}{FIX}   ", style="bold").append(fix, style="not bold cyan")
    yield Text(f"{indent}id    {finding.id}", style="dim")


def _wrapped(text: str, head: str, width: int, style: str = "", head_style: str = "") -> Iterator[Text]:
    """The text beside its head, further lines below the text."""
    pieces = textwrap.wrap(text, max(20, width - len(head)), break_long_words=False, break_on_hyphens=False) or [""]
    yield Text().append(head, style=head_style or style).append(pieces[0], style=style)
    for piece in pieces[1:]:
        yield Text(" " * len(head) + piece, style=style)


def _print(console: Console, line: Text) -> None:
    if not console.encoding.lower().startswith("utf"):
        line = Text(line.plain.translate(_ASCII).encode("ascii", "replace").decode(), style=line.style)
    console.print(line, soft_wrap=True, highlight=False)


def print_finding(finding: Finding, console: Console, sources: Sequence[str] = ()) -> None:
    """One finding by itself, as ``explain`` shows it."""
    mark, style = _MARKS[{"error": "broken", "warning": "warning", "info": "ok"}[finding.severity]]  # type: ignore[index]
    _print(console, Text(f"{mark} {finding.message}", style=style))
    for line in finding_lines(finding, min(WIDTH, console.width), said=finding.message, indent="    "):
        _print(console, line)
    if sources:
        _print(console, Text(f"    from  {', '.join(map(_source, sources))}", style="dim"))


def _source(source: str) -> str:
    """``docs/images.md`` → ``seatrial's documentation (images)``: a wheel does not carry the file."""
    if not source.startswith("docs/"):
        return source
    return f"seatrial's documentation ({source.removeprefix('docs/').removesuffix('.md')})"


#: In this order; the others are counted.
_TOLD = ("broken", "warning", "unknown")

#: What an engine says of itself that GPUs depend on. All of it is in ``--report FILE.json``.
_ENGINE_KEYS = (
    "ServerVersion", "Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "Runtimes", "CDISpecDirs",
    "DiscoveredDevices", "SecurityOptions", "OperatingSystem", "KernelVersion", "version",
    "host.ociRuntime", "host.security",
    "host.cgroupVersion",
)  # fmt: skip


def markdown(content: Mapping[str, Any]) -> str:
    """Of what ``report.full`` gives, so that names and secrets are gone already."""
    return "\n".join(_markdown_lines(content)) + "\n"


def _markdown_lines(content: Mapping[str, Any]) -> Iterator[str]:
    checks, facts = content["checks"], content["facts"]
    system = facts["system"]
    where = system["os_release"].get("PRETTY_NAME", "Linux")
    yield "### seatrial doctor"
    yield ""
    on = f"{where}, kernel {system['kernel']}, {system['machine']}"
    yield f"- seatrial {content['seatrial']}, Python {system['python']}, {on}"
    yield f"- GPUs: {_gpus(facts)}"
    for name in ("docker", "podman"):
        yield f"- {name.capitalize()}: {_engine(facts[name])}"
    counts = {status: sum(check["status"] == status for check in checks) for status in ("ok", "skipped", "blocked")}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    yield f"- checks: {told}; first broken: {content['first_broken'] or 'none'}"
    for check in sorted((c for c in checks if c["status"] in _TOLD), key=lambda c: _TOLD.index(c["status"])):
        yield from _check_markdown(check)
    yield from _folded("All checks", "text", (f"{c['status']:8} {c['id']:32} {c['line']}" for c in checks))
    kept = {**facts, "docker": _telling(facts["docker"]), "podman": _telling(facts["podman"])}
    yield from _folded("Facts", "json", json.dumps(kept, indent=1, default=str).splitlines())


def _gpus(facts: Mapping[str, Any]) -> str:
    driver = facts["driver"]["version"]
    names = [str(gpu.get("name")) for gpu in facts["nvml"]["gpus"]]
    told = ", ".join(names) or (f"{len(facts['bus'])} on the PCI bus" if facts["bus"] else "none seen")
    return f"{told}; driver {driver or 'not loaded'}"


def _engine(info: Any) -> str:
    if isinstance(info, Mapping):
        version = info.get("ServerVersion") or (info.get("version") or {}).get("Version")
        return str(version or "answers")
    return str(info or "not installed").splitlines()[0]


def _telling(info: Any) -> Any:
    """Those of an engine's facts that GPUs depend on."""
    if not isinstance(info, Mapping):
        return info
    host = info.get("host")
    flat = {**info, **{f"host.{key}": value for key, value in host.items()}} if isinstance(host, Mapping) else info
    return {key: flat[key] for key in _ENGINE_KEYS if key in flat}


def _check_markdown(check: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"**{check['status']}: `{check['id']}`** {_plain(check['line'])}"
    for finding in check["findings"]:
        said = [finding["message"] if finding["message"] != check["line"] else "", finding.get("cause") or ""]
        yield from (f"- {_plain(words)}" for words in said if words)
        yield from _fenced("text", _evidence(finding.get("evidence") or ()))
        if finding.get("fix"):
            yield f"- fix: `{finding['fix']}`"


def _evidence(lines: Sequence[str]) -> list[str]:
    return [line for text in lines for line in str(text).splitlines()][:40]


def _fenced(kind: str, lines: Sequence[str]) -> Iterator[str]:
    """As a block that no line of its own can end."""
    if lines:
        fence = "`" * max(3, 1 + max((len(line) - len(line.lstrip("`")) for line in lines), default=0))
        yield from (f"{fence}{kind}", *lines, fence)


def _folded(title: str, kind: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from ("", f"<details><summary>{title}</summary>", "")
    yield from _fenced(kind, [line.rstrip() for line in lines])
    yield from ("", "</details>")


def _plain(text: str) -> str:
    """What an engine said is no markup of ours."""
    return " ".join(text.split()).replace("<", "&lt;")
