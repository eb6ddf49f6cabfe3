"""``seatrial doctor`` and ``seatrial explain``: the GPU-container chain, link by link, and known failures."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli import terminal
from seatrial.cli.options import argument, command, importing, option, this_host
from seatrial.errors import RunNotFoundError, UsageError
from seatrial.system.text import one_line

if TYPE_CHECKING:
    from seatrial.doctor.check import Layer
    from seatrial.doctor.examine import Result
    from seatrial.doctor.inspection import InspectionRequest
    from seatrial.findings.finding import Finding
    from seatrial.runs.run import Run

#: Values of --on; ``k8s`` examines the chain's last layer alone.
_ENGINES = ("auto", "docker", "podman", "local", "k8s")


@command()
@option("--on", metavar="ENGINE", default="auto", help="auto, docker, podman or local; k8s: the cluster alone.")
@option("tries", "--try", is_flag=True, help="With --on k8s: run a short pod, of --image if named, and remove it.")
@option("--image", metavar="IMAGE", help="Inspect this image.")
@option("--container", metavar="NAME", help="Inspect this running container.")
@option("--python", metavar="PATH", help="Python interpreter inside.")
@option("--mount", metavar="SRC:DST[:ro]", multiple=True, help="As for run.")
@option("--env", metavar="NAME=VALUE", multiple=True, help="As for run.")
@option("--shm-size", metavar="SIZE", help="As for run.")
@option("--network", metavar="NAME", help="As for run; optional.")
@option("--host-only", is_flag=True, help="Host checks only, no container; under 1.5 s.")
@option("--only", metavar="LAYER", multiple=True, help="Check only this layer, such as cdi; can be repeated.")
@option("--fix", is_flag=True, help="Apply safe fixes, showing each change first.")
@option("--yes", "-y", is_flag=True, help="With --fix: do not ask.")
@option("undo_last", "--undo", is_flag=True, help="Undo the last --fix.")
@option(
    "cdi_file",
    "--write-cdi",
    metavar="[FILE]",
    is_flag=False,
    flag_value="",
    help="Write a CDI spec from NVML and the driver's files, no toolkit needed; - prints it.",
)
@option("--verbose", "-v", is_flag=True, help="Also show checks that do not apply.")
@option("as_json", "--json", is_flag=True, help="Print the report as JSON.")
@option(
    "report_file",
    "--report",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write a report for an issue, without names or secrets: Markdown, or FILE.json.",
)
@option("--with-names", is_flag=True, help="Keep user and host names in the report.")
def doctor(
    on: str,
    tries: bool,
    host_only: bool,
    only: tuple[str, ...],
    fix: bool,
    yes: bool,
    undo_last: bool,
    cdi_file: str | None,
    verbose: bool,
    as_json: bool,
    report_file: str | None,
    with_names: bool,
    **inspected: Any,
) -> int:
    """Check the whole GPU-container chain. Exit code 0 ok, 1 warnings, 2 broken.

    \b
    seatrial doctor --image my/image:1
    seatrial doctor --container NAME
    seatrial doctor --fix
    seatrial doctor --write-cdi
    seatrial doctor --report
    """
    with importing():
        from seatrial.cli.screen import Screen
        from seatrial.doctor import report
        from seatrial.doctor.examine import examine
        from seatrial.doctor.fix import apply_fixes, undo
        from seatrial.doctor.machine import Machine

    console, host = terminal.console(), this_host()
    if undo_last:
        undo(console, host)
        return report.EXIT_OK
    if cdi_file is not None:
        return _write_cdi(cdi_file)
    _refuse_contradictions(on, report_file, as_json=as_json, fix=fix)
    chain = _layers(on, only, host_only=host_only)
    if tries:
        chain.append(_trying(on, inspected["image"]))
    machine = Machine(host, on=on, inspect=_inspection(**inspected))
    start, screen = time.monotonic(), Screen(json=as_json, quiet=as_json or report_file == "-")
    examined: list[tuple[Layer, list[Result]]] = []

    with screen.working("checking the chain"):
        results = examine(machine, chain, lambda layer, of_layer: examined.append((layer, of_layer)))
    if as_json:
        print(json.dumps(report.to_dict(results), indent=1))
    elif report_file != "-":
        report.print_summary(results, console, time.monotonic() - start)
        for layer, of_layer in examined:
            report.print_layer(layer, of_layer, console, verbose=verbose or bool(only))
    if report_file is not None:
        _write_report(report.full(results, machine, with_names=with_names), report_file)
    if fix:
        apply_fixes(results, machine, console, lambda question: yes or _agrees(question))
    return report.exit_code(results)


def _refuse_contradictions(on: str, report_file: str | None, *, as_json: bool, fix: bool) -> None:
    from seatrial.system.files import require_writable

    if as_json and report_file == "-":
        raise UsageError("--json and --report both print", run="seatrial doctor --json --report report.md")
    if as_json and fix:
        raise UsageError("--fix asks and shows what it changes, --json prints one object", run="seatrial doctor --fix")
    if on not in _ENGINES:
        raise UsageError(f"Unknown engine {on!r}; available: {', '.join(_ENGINES)}", run="seatrial doctor --help")
    if report_file not in (None, "-"):
        require_writable(Path(report_file or ""))


def _layers(on: str, only: tuple[str, ...], *, host_only: bool) -> list[Layer]:
    """Return the layers to examine. Raises UsageError for a layer that does not exist."""
    from seatrial.doctor.examine import CHAIN, HOST, with_third_party

    known = [layer.name for layer in CHAIN]
    if unknown := [name for name in only if name not in known]:
        raise UsageError(f"Unknown layer {unknown[0]!r}; available: {', '.join(known)}", run="seatrial doctor")
    names = ("kubernetes",) if on == "k8s" else HOST if host_only else only
    chosen = [layer for layer in CHAIN if not names or layer.name in names]
    return chosen if only or on == "k8s" else list(with_third_party(chosen))


def _trying(on: str, image: str | None) -> Layer:
    """Return the layer of the short pod, with the project's volume. Raises UsageError, ConfigError."""
    from seatrial.doctor.checks.kubernetes import trying
    from seatrial.job.cluster import Volume
    from seatrial.job.loading import read_file
    from seatrial.system.project_files import project_root

    if on != "k8s":
        raise UsageError("--try runs a pod, which needs a cluster", run="seatrial doctor --on k8s --try")
    volume = read_file(project_root(Path())).get("kubernetes", {}).get("models")
    return trying(image or "python:3.11-slim-bookworm", volume or Volume(kind="emptydir"))


def _inspection(
    mount: tuple[str, ...], env: tuple[str, ...], shm_size: str | None, **subject: str | None
) -> InspectionRequest:
    """Return the image or container to look into. Raises UsageError for an empty name or a malformed variable."""
    from seatrial.backends.containers.mounts import checked_mount, parse_mount
    from seatrial.doctor.inspection import InspectionRequest
    from seatrial.job.units import parse_bytes

    for name in ("image", "container"):
        if (value := subject[name]) is not None and not value.strip():
            raise UsageError(f"--{name} got an empty name", run=f"seatrial doctor --{name} NAME")
    pairs = [text.partition("=") for text in env]
    for text, (name, equals, _) in zip(env, pairs, strict=True):
        if not name or not equals:
            raise UsageError(f"--env {text!r} is not NAME=VALUE", run="seatrial doctor --env NAME=VALUE")
    mounts = tuple(checked_mount(parse_mount(text), Path.cwd(), this_host().state_folder) for text in mount)
    values = {name: value for name, _, value in pairs}
    shm_bytes = None if shm_size is None else parse_bytes(shm_size)
    return InspectionRequest(mounts=mounts, env=values, shm_bytes=shm_bytes, **subject)


def _write_cdi(file: str) -> int:
    """Write the spec of this machine's GPUs, which Podman and Docker 25 and later read; "-" prints it."""
    from seatrial.backends.containers.cdi import spec_text
    from seatrial.doctor import fix, report
    from seatrial.doctor.machine import Machine
    from seatrial.system.files import make_folder, write_atomically

    machine = Machine(this_host())
    text = spec_text(machine.driver, machine.inventory.gpus)
    if file == "-":
        print(text, end="")
        return report.EXIT_OK
    path = Path(file or fix.SPEC)
    make_folder(path.parent)
    write_atomically(path, text.encode())
    terminal.console().print(f"{path} written; try: podman run --device nvidia.com/gpu=all …", soft_wrap=True)
    return report.EXIT_OK


def _write_report(content: Mapping[str, Any], name: str) -> None:
    """Write Markdown to a file whose name ends in .md, else JSON; "-" prints Markdown."""
    from seatrial.doctor.report import markdown
    from seatrial.system.files import write_atomically

    if name == "-":
        print(markdown(content), end="")
        return
    text = markdown(content) if name.endswith(".md") else json.dumps(content, indent=1, default=str)
    write_atomically(Path(name), text.encode(), None)
    terminal.console(stderr=True).print(f"report: {Path(name)}", soft_wrap=True)


def _agrees(question: str) -> bool:
    """Return the user's answer. Raises UsageError if standard input is closed; Ctrl-C is another matter."""
    try:
        return click.confirm(one_line(question))
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UsageError("No answer: standard input was closed", run="seatrial doctor --fix --yes") from error
        raise


@command()
@argument("text", nargs=-1, metavar="[TEXT…]")
@option("as_json", "--json", is_flag=True, help="Print the findings as JSON.")
def explain(text: tuple[str, ...], as_json: bool) -> int:
    """Explain an error, a log or a receipt: cause and fix of every known failure.

    TEXT is a message or a part of it, a file (log, receipt.json), a run (its name, or last), or an ID; - is stdin.
    Exit code 0 if a known failure was found or the run ended well, 1 if not.

    \b
    seatrial explain "no kernel image is available"    a part of a message
    seatrial explain train.log                         a file: a log, a receipt.json, the folder of a run
    seatrial explain < train.log                       a log of any size
    dmesg | seatrial explain -                         the kernel's messages
    seatrial explain last                              a run that has ended
    seatrial explain uvm-node-missing                  the ID of a finding
    """
    with importing():
        from seatrial.doctor import explain as explaining
        from seatrial.doctor.report import print_finding

    findings, ended_well, then = _findings(list(text))
    several = [] if findings or as_json else explaining.candidates(" ".join(text))
    console = terminal.console()
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=1))
    elif several:
        console.print("Several failures have these words: the whole line shows which:")
        for entry in several:
            console.print(f"  {entry.title}\n    seatrial explain {entry.id}", soft_wrap=True)
    elif not findings:
        console.print(f"No known failure found. {then or 'To check the whole chain: seatrial doctor'}")
    for finding in [] if as_json else sorted(findings, key=lambda each: each.severity == "info"):
        print_finding(finding, console, explaining.sources(finding.id))
    return 0 if findings or ended_well else 1


def _run_of(word: str) -> Run | None:
    """Return the run that the word names, or None; print the verdict of a run that has ended."""
    from seatrial.compose.group import find_run
    from seatrial.runs.status import finalise
    from seatrial.runs.store import store_of

    with suppress(RunNotFoundError):
        run = find_run(store_of(None), word)
        if receipt := finalise(run, this_host()):
            console = terminal.console(stderr=True, soft_wrap=True)
            console.print(terminal.at_words(f"{run.id}: {receipt.outcome.sentence}", console))
        return run
    return None


def _findings(words: list[str]) -> tuple[list[Finding], bool, str]:
    """Find known failures in standard input, a file, or the words; return also if a run ended well, and a hint."""
    from seatrial.doctor.explain import explain_file, explain_stream, explain_text, named_file

    if not words and sys.stdin.isatty():
        run = 'seatrial explain "the error text"   # or: seatrial explain train.log'
        raise UsageError("Nothing to explain", run=run)
    if words in ([], ["-"]):
        terminal.printing()  # the input may be typed
        return explain_stream(sys.stdin.buffer), False, ""
    if (path := named_file(words)) is not None:
        return *explain_file(path), ""
    findings = explain_text(" ".join(words))
    if not findings and len(words) == 1 and (named := _run_of(words[0])) is not None:
        return *explain_file(named.folder), f"The run's output: seatrial runs logs {words[0]}"
    if not findings and len(words) == 1 and " " not in words[0]:
        run = f"ls {shlex.quote(str(Path(words[0]).parent))}" if re.search(r"[/.]", words[0]) else "seatrial runs ls"
        raise UsageError(f"No file, run of this project or known failure is called {words[0]}", run=run)
    return findings, False, ""
