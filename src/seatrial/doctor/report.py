"""Show the report: on a terminal, as data (``--json``, a stable schema), as Markdown for an issue; secrets redacted."""

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
from seatrial.system.text import command_and_comment

#: Raised when a key changes its meaning or goes; new keys do not raise it.
SCHEMA_VERSION = 1

EXIT_OK, EXIT_WARNINGS, EXIT_BROKEN = 0, 1, 2
#: Names of variables whose values are of use in a report.
_VARIABLES = re.compile(
    r"^(CUDA|NVIDIA|NCCL|DOCKER|CONTAINER|PODMAN|SEATRIAL|LD_LIBRARY_PATH|KUBECONFIG|XDG_|TORCH|TF_)"
)

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
#: Replacements for terminals that print only ASCII.
_ASCII = str.maketrans({"✓": "v", "✗": "x", "·": ".", "…": "..."})

#: Facts of an engine that GPUs depend on. All of them are in ``--report FILE.json``.
_ENGINE_KEYS = (
    "ServerVersion", "Driver", "CgroupDriver", "CgroupVersion", "DefaultRuntime", "Runtimes", "CDISpecDirs",
    "DiscoveredDevices", "SecurityOptions", "OperatingSystem", "KernelVersion", "version",
    "host.ociRuntime", "host.security",
    "host.cgroupVersion",
)  # fmt: skip


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 for ok, 1 for warnings (or something that could not be examined), 2 for broken."""
    statuses = {result.verdict.status for result in results}
    if "broken" in statuses:
        return EXIT_BROKEN
    return EXIT_WARNINGS if statuses & {"warning", "unknown"} else EXIT_OK


def to_dict(results: Sequence[Result]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "seatrial": __version__,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "exit_code": exit_code(results),
        "first_broken": next((result.check.id for result in results if result.verdict.status == "broken"), None),
        "checks": [
            {
                "id": result.check.id,
                "layer": result.check.layer,
                "title": result.check.title,
                "status": result.verdict.status,
                "line": result.verdict.line,
                "blocked_by": result.blocked_by,
                "seconds": round(result.seconds, 3),
                "findings": [finding.to_dict() for finding in result.verdict.findings],
            }
            for result in results
        ],
    }


def full(results: Sequence[Result], machine: Machine, *, with_names: bool = False) -> dict[str, Any]:
    """Return ``--report``: results and facts, without secrets and, unless ``with_names``, user, host and home."""
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
        "environment": {name: value for name, value in sorted(machine.host.env.items()) if _VARIABLES.match(name)},
    }
    names = names_of(machine.host, hosts=_engine_hosts(machine))
    if with_names:
        names = Names(secrets=names.secrets)
    return names.scrub({**to_dict(results), "facts": facts})


def _info(info: dict[str, Any] | EngineUnavailableError | None, with_names: bool) -> Any:
    """Return the engine's report, without the name of its machine."""
    if isinstance(info, EngineUnavailableError):
        return info.message
    if info is None or with_names:
        return info
    host = info.get("host")
    about = {"host": {key: value for key, value in host.items() if key != "hostname"}} if isinstance(host, dict) else {}
    return {**{key: value for key, value in info.items() if key != "Name"}, **about}


def _engine_hosts(machine: Machine) -> list[str]:
    """Return names of the engines' machines, which need not be this one: their own names, and their addresses."""
    docker, podman = machine.docker_info, machine.podman_info
    host = podman.get("host") if isinstance(podman, dict) else None
    found = [docker.get("Name") if isinstance(docker, dict) else None]
    found += [host.get("hostname") if isinstance(host, dict) else None]
    found += [urlsplit(machine.host.env.get(variable, "")).hostname for variable in ("DOCKER_HOST", "CONTAINER_HOST")]
    return [name for name in found if isinstance(name, str)]


def print_layer(layer: Layer, results: Sequence[Result], console: Console, *, verbose: bool = False) -> None:
    """Print a layer's title, then its links; those that do not apply here only if ``verbose``."""
    if shown := [result for result in results if verbose or result.verdict.status != "skipped"]:
        _print(console, Text(layer.title, style="bold"))
    blocked = [] if verbose else [result for result in shown if result.verdict.status == "blocked"]
    width = min(WIDTH, console.width)
    for verdict in (result.verdict for result in shown if result not in blocked):
        healthy = verdict.status == "ok"
        mark, style = _NOTE if healthy and verdict.findings else _MARKS[verdict.status]
        _print(console, *_wrapped(verdict.line, f"  {mark} ", width, "" if healthy else style, style))
        for finding in verdict.findings:
            _print_finding_lines(finding, console, shown=verdict.line, indent="      ")
    if blocked:
        mark, style = _MARKS["blocked"]
        by = ", ".join(dict.fromkeys(str(result.blocked_by) for result in blocked))
        _print(console, Text(f"  {mark} {len(blocked)} not checked, blocked by {by}", style=style))


def print_summary(results: Sequence[Result], console: Console, seconds: float) -> None:
    """Print the first broken link and its fix, or that no check failed; above the links, because it is the answer."""
    statuses = [result.verdict.status for result in results]
    counts = {status: statuses.count(status) for status in _MARKS if status in statuses}
    broken = next((result for result in results if result.verdict.status == "broken"), None)
    named = {status: count for status, count in counts.items() if status not in ("skipped", "blocked")}
    words = ", ".join(f"{count} {status}{'s' * (status == 'warning' and count > 1)}" for status, count in named.items())
    words = words or results[0].verdict.line  # why nothing applies
    if broken is None:
        head = "No failed check seen" if "unknown" in counts else "No failed check"
        style = "bold" if "unknown" in counts else "bold green"
        _print(console, Text(f"{head}: {words} ({seconds:.1f} s)", style=style))
    else:
        problem = f"{broken.check.id}: {broken.verdict.line}"
        _print(console, *_wrapped(problem, "First failed check: ", console.width, "bold red"))
        if broken.verdict.findings and (fix := broken.verdict.findings[0].fix):
            _print(console, *_command(fix, Text(f"  {FIX}: ", style="bold"), console, "not bold"))
        _print(console, Text(f"  {words} ({seconds:.1f} s)", style="dim"))
    _print(console, Text())


def print_finding(finding: Finding, console: Console, sources: Sequence[str] = ()) -> None:
    """Print one finding by itself, for ``explain``."""
    mark, style = {"error": _MARKS["broken"], "warning": _MARKS["warning"], "info": _NOTE}[finding.severity]
    _print(console, Text(f"{mark} {finding.message}", style=style))
    _print_finding_lines(finding, console, shown=finding.message, indent="    ")
    if sources:  # a wheel does not carry the file docs/images.md
        named = (re.sub(r"^docs/(.*)\.md$", r"seatrial's documentation (\1)", each) for each in sources)
        _print(console, Text(f"    from  {', '.join(named)}", style="dim"))


def _print_finding_lines(finding: Finding, console: Console, *, shown: str, indent: str) -> None:
    """Print cause, evidence and fix. The command is never broken across lines: it is there to be copied."""
    width = min(WIDTH, console.width)
    lines = [] if finding.message == shown else [*_wrapped(finding.message, indent, width, "bold")]
    if finding.cause:
        lines += _wrapped(finding.cause, f"{indent}{CAUSE} ", width)
    for piece in (p for line in finding.evidence for p in line.splitlines() if p.strip() not in finding.message):
        lines += _wrapped(piece, f"{indent}seen  ", width, "dim")
    if fix := finding.fix:
        if len(fix) > MAX_COMMAND:  # a shell goes on behind &&, so the lines can be copied
            fix = fix.replace(" && ", f" &&\n{' ' * len(indent)}      ")
        lines += _command(fix, Text(f"{indent}{FIX}   ", style="bold"), console, "not bold cyan")
    _print(console, *lines, Text(f"{indent}id    {finding.id}", style="dim"))


def _command(fix: str, head: Text, console: Console, style: str) -> Iterator[Text]:
    """Yield a command behind its head, with the comment below it if the terminal is too narrow."""
    command, comment = command_and_comment(fix)
    if not console.is_terminal or len(head) + len(fix) <= console.width:
        command, comment = fix, ""
    yield head.copy().append(command, style=style)
    if comment:
        yield from _wrapped(comment, f"{' ' * len(head)}# ", console.width, "dim")


def _wrapped(text: str, head: str, width: int, style: str = "", head_style: str = "") -> Iterator[Text]:
    """Yield the text behind its head, further lines below the text."""
    pieces = textwrap.wrap(text, max(20, width - len(head)), break_long_words=False, break_on_hyphens=False) or [""]
    yield Text().append(head, style=head_style or style).append(pieces[0], style=style)
    yield from (Text(" " * len(head) + piece, style=style) for piece in pieces[1:])


def _print(console: Console, *lines: Text) -> None:
    for line in lines:
        if not console.encoding.lower().startswith("utf"):
            line = Text(line.plain.translate(_ASCII).encode("ascii", "replace").decode(), style=line.style)
        console.print(line, soft_wrap=True, highlight=False)


def markdown(content: Mapping[str, Any]) -> str:
    """Return a ``full`` report to paste into an issue: problems first, the facts folded below them."""
    return "\n".join(_markdown_lines(content)) + "\n"


def _markdown_lines(content: Mapping[str, Any]) -> Iterator[str]:
    checks, facts = content["checks"], content["facts"]
    system, problems = facts["system"], ("broken", "warning", "unknown")
    where = f"{system['os_release'].get('PRETTY_NAME', 'Linux')}, kernel {system['kernel']}, {system['machine']}"
    counts = {status: sum(check["status"] == status for check in checks) for status in ("ok", "skipped", "blocked")}
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    names = ", ".join(str(gpu.get("name")) for gpu in facts["nvml"]["gpus"])
    gpus = names or (f"{len(facts['bus'])} on the PCI bus" if facts["bus"] else "none seen")
    yield from ("### seatrial doctor", "")
    yield f"- seatrial {content['seatrial']}, Python {system['python']}, {where}"
    yield f"- GPUs: {gpus}; driver {facts['driver']['version'] or 'not loaded'}"
    for name in ("docker", "podman"):
        yield f"- {name.capitalize()}: {_engine(facts[name])}"
    yield f"- checks: {counted}; first broken: {content['first_broken'] or 'none'}"
    for check in (each for status in problems for each in checks if each["status"] == status):
        yield from _check_markdown(check)
    yield from _folded("All checks", "text", (f"{c['status']:8} {c['id']:32} {c['line']}" for c in checks))
    kept = {**facts, "docker": _gpu_facts(facts["docker"]), "podman": _gpu_facts(facts["podman"])}
    yield from _folded("Facts", "json", json.dumps(kept, indent=1, default=str).splitlines())


def _engine(info: Any) -> str:
    if isinstance(info, Mapping):
        return str(info.get("ServerVersion") or (info.get("version") or {}).get("Version") or "answers")
    return str(info or "not installed").splitlines()[0]


def _gpu_facts(info: Any) -> Any:
    """Return an engine's facts that GPUs depend on."""
    if not isinstance(info, Mapping):
        return info
    host = info.get("host")
    flat = {**info, **{f"host.{key}": value for key, value in host.items()}} if isinstance(host, Mapping) else info
    return {key: flat[key] for key in _ENGINE_KEYS if key in flat}


def _check_markdown(check: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"**{check['status']}: `{check['id']}`** {_escaped(check['line'])}")
    for finding in check["findings"]:
        sentences = [finding["message"] if finding["message"] != check["line"] else "", finding.get("cause") or ""]
        yield from (f"- {_escaped(words)}" for words in sentences if words)
        evidence = [line for text in finding.get("evidence") or () for line in str(text).splitlines()]
        yield from _fenced("text", evidence[:40])
        if finding.get("fix"):
            yield f"- fix: `{finding['fix']}`"


def _fenced(kind: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield a block that no line of its own can end."""
    if lines:
        fence = "`" * max(3, 1 + max((len(line) - len(line.lstrip("`")) for line in lines), default=0))
        yield from (f"{fence}{kind}", *lines, fence)


def _folded(title: str, kind: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from ("", f"<details><summary>{title}</summary>", "")
    yield from _fenced(kind, [line.rstrip() for line in lines])
    yield from ("", "</details>")


def _escaped(text: str) -> str:
    """Return an engine's text on one line, without markup."""
    return " ".join(text.split()).replace("<", "&lt;")
