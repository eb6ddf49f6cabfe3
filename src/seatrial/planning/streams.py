"""Pass the caller's terminals and standard input on to a target (docs/decisions.md, 0028)."""

from __future__ import annotations

from typing import NamedTuple

from seatrial.common.agent_plan import Terminal
from seatrial.errors import UsageError
from seatrial.frames import PIPE
from seatrial.job.in_container import CONTAINER_INPUT
from seatrial.job.plan import ContainerPlan, Mount
from seatrial.job.script import ScriptFacts
from seatrial.planning.launcher import Launcher
from seatrial.planning.site import Parts, Site
from seatrial.system.host import Caller

_ASKS = "asks on the terminal, which -d and clusters lack; answers can be piped: printf 'ANSWER\\n' | seatrial run …"


class Streams(NamedTuple):
    """Holds the terminal and the input that the target gets of the caller's.

    ``container``: the plan's, with the pipe, if there is one, mounted. ``input``: the pipe as the agent sees it.
    """

    container: ContainerPlan | None
    terminal: Terminal | None = None
    input: str | None = None
    warnings: tuple[str, ...] = ()


def choose_streams(site: Site, script: ScriptFacts, parts: Parts, launcher: Launcher) -> Streams:
    """Choose the target's terminal and input. Raises UsageError: ``--interactive`` where no input can be passed on."""
    caller, asks = site.caller, f"{script.asks_evidence} {_ASKS}" if script.asks_evidence else None
    if caller is None:
        return Streams(parts.container, warnings=(asks,) if asks else ())
    no_input = _why_no_input(site, parts, launcher)
    if no_input is not None and caller.asks:
        raise UsageError(f"--interactive cannot be used: {no_input[0]}", run=no_input[1])
    wants, warnings = _wants_input(caller, script)
    if wants and no_input is not None:
        if caller.input != "terminal" and script.input_evidence is not None:
            warnings = (f"Standard input is not passed to the target: {no_input[0]}",)
        elif asks:
            warnings = (asks,)
        wants = False
    terminal = None
    if site.backend.traits.on_this_host and not _has_ranks(parts, launcher):
        terminal = _terminal(caller, typed=wants)
    if not wants:
        return Streams(parts.container, terminal, None, warnings)
    source = site.record / PIPE
    if parts.container is None:
        return Streams(None, terminal, str(source), warnings)
    mount = Mount(source=source, target=CONTAINER_INPUT, read_only=True)
    container = parts.container.changed(mounts=(*parts.container.mounts, mount))
    return Streams(container, terminal, CONTAINER_INPUT, warnings)


def _wants_input(caller: Caller, script: ScriptFacts) -> tuple[bool, tuple[str, ...]]:
    """Return whether the caller's input is for the target, and warnings if that may surprise.

    A pipe is, if the script may read it; a file only on request, as a shell's loop may be reading it.
    """
    if caller.input == "nothing":
        return False, ()
    if caller.asks:
        return True, ()
    if caller.input == "terminal":
        return 1 in caller.screens, ()
    if caller.input == "pipe":
        return script.input_evidence is not None or not script.files, ()
    if script.input_evidence is None:
        return False, ()
    reads = f"the target reads it ({script.input_evidence})"
    return False, (f"Standard input is a file here, which is passed to the target only with --interactive; {reads}",)


def _why_no_input(site: Site, parts: Parts, launcher: Launcher) -> tuple[str, str] | None:
    """Return (why nothing typed or piped can reach the target, the next command), or None."""
    if not site.backend.traits.on_this_host:
        return "a cluster's pods run detached", "seatrial runs exec RUN -- bash   # once it runs"
    if _has_ranks(parts, launcher):
        return "several ranks would share one input", "seatrial run … --launcher none"
    if site.engine.desktop:
        return "Docker Desktop's virtual machine cannot read this system's pipes", "seatrial shell …"
    return None


def _has_ranks(parts: Parts, launcher: Launcher) -> bool:
    return launcher == "torchrun" or parts.meeting.nodes > 1


def _terminal(caller: Caller, *, typed: bool) -> Terminal | None:
    """Return terminals for what the caller sees on one; its keyboard is one where its screen is. None without one."""
    if 1 not in caller.screens:
        return None
    keyboard = (0,) if typed and caller.input == "terminal" else ()
    return Terminal(caller.columns, caller.lines, (*keyboard, *caller.screens), caller.term, caller.colors)
