"""The report as Markdown to paste into an issue: what is wrong first, the facts folded below it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Mapping[str, Any]) -> Iterator[str]:
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
        yield from _check(check)
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


def _check(check: Mapping[str, Any]) -> Iterator[str]:
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
