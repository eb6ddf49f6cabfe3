"""``seatrial doctor``: the GPU-container chain, link by link, and the command that fixes the first broken one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from seatrial.backends import table
from seatrial.backends.containers.user_mounts import checked_mount, parse_mount
from seatrial.cli.screens.live_line import LiveLine
from seatrial.doctor import report, terminal
from seatrial.doctor.chain import CHAIN, HOST, Layer, with_third_party
from seatrial.doctor.examine import Result, examine
from seatrial.doctor.facts.inspection import InspectionRequest
from seatrial.doctor.facts.machine import Machine
from seatrial.doctor.fixing.apply_fixes import apply_fixes, undo
from seatrial.doctor.report_markdown import markdown
from seatrial.errors import UsageError
from seatrial.job.units import parse_bytes
from seatrial.system.files import require_writable, write_atomically
from seatrial.system.state import state_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


# A verb's flags are the function's parameters: typer reads them from there.
@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def doctor(
    on: Annotated[str, typer.Option("--on", metavar="ENGINE", help="auto, docker, podman or local.")] = "auto",
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Inspect this image.")] = None,
    container: Annotated[
        str | None, typer.Option("--container", metavar="NAME", help="Inspect this running container.")
    ] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="PATH", help="Python interpreter inside.")] = None,
    mount: Annotated[list[str] | None, typer.Option("--mount", metavar="SRC:DST[:ro]", help="As for run.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="As for run.")] = None,
    shm_size: Annotated[str | None, typer.Option("--shm-size", metavar="SIZE", help="As for run.")] = None,
    network: Annotated[str | None, typer.Option("--network", metavar="NAME", help="As for run; optional.")] = None,
    host_only: Annotated[
        bool, typer.Option("--host-only", help="Host checks only, no container; under 1.5 s.")
    ] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Apply safe fixes, showing each change first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    undo_last: Annotated[bool, typer.Option("--undo", help="Undo the last --fix.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show checks that do not apply.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="[FILE]", help="For an issue, no names, no secrets: Markdown, or FILE.json."),
    ] = None,
    with_names: Annotated[bool, typer.Option("--with-names", help="Keep user and host names in the report.")] = False,
) -> int:
    """Check the whole GPU-container chain. Exit code 0 ok, 1 warnings, 2 broken.

    \b
    seatrial doctor --image my/image:1
    seatrial doctor --container NAME
    seatrial doctor --fix
    seatrial doctor --report
    """
    console = Console(highlight=False)
    if undo_last:
        undo(console, os.environ)
        return report.EXIT_OK
    if as_json and report_file is not None and str(report_file) == "-":
        raise UsageError("--json and --report both print", run="seatrial doctor --json --report report.md")
    if as_json and fix:
        raise UsageError("--fix asks and shows what it changes, --json prints one object", run="seatrial doctor --fix")
    if on not in (places := ("auto", *table.on_this_host())):
        raise UsageError(f"There is no engine {on!r}: choose from {', '.join(places)}", run="seatrial doctor --help")
    if report_file is not None and str(report_file) != "-":
        require_writable(report_file)
    for option, name in (("--image", image), ("--container", container)):
        if name is not None and not name.strip():
            raise UsageError(f"{option} got an empty name", run=f"seatrial doctor {option} NAME")
    request = InspectionRequest(
        image=image,
        container=container,
        python=python,
        mounts=tuple(checked_mount(parse_mount(text), Path.cwd(), state_folder(os.environ)) for text in mount or ()),
        env=dict(_pair(text) for text in env or ()),
        network=network,
        shm_bytes=None if shm_size is None else parse_bytes(shm_size),
    )
    machine = Machine(os.environ, on=on, inspect=request)
    chain = with_third_party([layer for layer in CHAIN if not host_only or layer.name in HOST])
    start = time.monotonic()
    to_paste = report_file is not None and str(report_file) == "-"
    examined: list[tuple[Layer, list[Result]]] = []
    live = LiveLine()

    def show(layer: Layer, of_layer: list[Result]) -> None:
        examined.append((layer, of_layer))
        if live.changes and not (as_json or to_paste):
            live.show(f"checked: {layer.title}")

    results = examine(machine, chain, show)
    live.clear()
    if as_json:
        print(json.dumps(report.to_dict(results), indent=1))
    elif not to_paste:
        terminal.print_summary(results, console, time.monotonic() - start)
        for layer, of_layer in examined:
            terminal.print_layer(layer, of_layer, console, verbose=verbose)
    if report_file is not None:
        _write_report(report.full(results, machine, with_names=with_names), None if to_paste else report_file)
    if fix:
        apply_fixes(results, machine, console, lambda question: yes or _agrees(question))
    return report.exit_code(results)


def reworded(words: list[str]) -> list[str]:
    """``--report`` alone prints: typer's options all take a value, or none does."""
    behind = [*words, "-"][1:]
    return [
        "--report=-" if word == "--report" and following.startswith("-") else word
        for word, following in zip(words, behind, strict=True)
    ]


def _write_report(content: Mapping[str, Any], file: Path | None) -> None:
    """Everything as JSON, for a file whose name does not end in .md; else Markdown. None: printed."""
    if file is None:
        print(markdown(content), end="")
        return
    text = markdown(content) if file.suffix == ".md" else json.dumps(content, indent=1, default=str)
    write_atomically(file, text.encode())
    Console(stderr=True, highlight=False).print(f"report: {file}", soft_wrap=True)


def _agrees(question: str) -> bool:
    """What the user answers. Raises UsageError where nobody can: Ctrl-C is another matter."""
    try:
        return typer.confirm(question)
    except typer.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UsageError("No answer: standard input was closed", run="seatrial doctor --fix --yes") from error
        raise


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--env {text!r} is not NAME=VALUE", run="seatrial doctor --env NAME=VALUE …")
    return name, value
