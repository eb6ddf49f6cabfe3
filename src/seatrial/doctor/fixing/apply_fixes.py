"""--fix and --undo: show each change, ask, write the journal, make it; an engine is restarted only when it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from seatrial.doctor.examine import Result
from seatrial.doctor.facts.machine import Machine
from seatrial.doctor.fixing.change import Change, Journal
from seatrial.doctor.fixing.fixes import changes_for
from seatrial.errors import DiskError
from seatrial.system.host import Host

RESTART_S = 60.0

_DIFF = {"+": "green", "-": "red", "@": "cyan"}

Ask = Callable[[str], bool]


def apply_fixes(results: Sequence[Result], machine: Machine, console: Console, ask: Ask) -> int:
    """Make the safe changes that are agreed to; the number made. Raises DiskError, with what was made taken back."""
    agreed: list[Change] = []
    for change in changes_for(results, machine):
        console.print(Text(f"\n{change.path}: {change.why}", style="bold"), soft_wrap=True)
        for line in change.diff().splitlines():
            console.print(Text(line, style=_DIFF.get(line[:1], "")), soft_wrap=True)
        if ask(f"Write {change.path}?"):
            agreed.append(change)
    if not agreed:
        console.print("\nNothing was changed." + _by_hand(results))
        return 0
    journal = Journal(machine.host)
    path = journal.write(agreed)
    made: list[Change] = []
    try:
        for change in agreed:
            change.make()
            made.append(change)
    except DiskError:
        for change in reversed(made):
            change.take_back()
        journal.close(path)
        raise
    console.print(f"\n{len(made)} written; to undo: seatrial doctor --undo")
    if any(change.path.name == "daemon.json" for change in made):
        _restart(machine, console, ask)
    return len(made)


def _by_hand(results: Sequence[Result]) -> str:
    fixes = any(finding.fix for result in results for finding in result.verdict.findings)
    return " Fix the rest manually with the commands above." if fixes else ""


def _restart(machine: Machine, console: Console, ask: Ask) -> None:
    """Docker reads daemon.json when it starts. With containers running only a person may decide it."""
    info = machine.docker_info if isinstance(machine.docker_info, dict) else {}
    running = int(info.get("ContainersRunning") or 0)
    snap = machine.docker is not None and machine.docker.snap
    argv = ["snap", "restart", "docker"] if snap else ["systemctl", "restart", "docker"]
    command = f"sudo {' '.join(argv)}"
    if running:
        console.print(
            f"Docker reads it at its next start, which would stop the {running} running containers: {command}"
        )
        return
    if not ask("Restart Docker now? No container is running."):
        console.print(f"Docker reads it at its next start: {command}")
        return
    ended = machine.command(argv, timeout_s=RESTART_S)
    console.print("Docker was restarted." if ended.exit_code == 0 else f"{command} failed: {ended.last_line()}")


def undo(console: Console, host: Host) -> None:
    """Take the newest session back. Raises UsageError, DiskError."""
    journal = Journal(host)
    path, changes = journal.newest()
    for change in reversed(changes):
        change.take_back()
        console.print(f"{change.path}: {'as before' if change.before is not None else 'removed'}", soft_wrap=True)
    journal.close(path)
    if any(change.path.name == "daemon.json" for change in changes):
        console.print("Docker reads it at its next start: sudo systemctl restart docker")
