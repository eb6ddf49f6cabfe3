"""``seatrial explain``: what an error text, a log or a receipt means, and what fixes it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seatrial.doctor import explain as explaining
from seatrial.doctor.explain_file import explain_file, looks_like_a_file, named_file
from seatrial.doctor.terminal import print_finding
from seatrial.errors import UsageError
from seatrial.findings.finding import Finding

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="A message or a part of it, a file (log, receipt.json, folder of a run), an ID; - is stdin."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Explain an error, a log or a receipt: cause and fix of every known failure.

    Exit code 0 if a known failure was found, 1 if not.

    \b
    seatrial explain "no kernel image is available"    a part of a message
    seatrial explain train.log                         a file: a log, a receipt.json, the folder of a run
    seatrial explain < train.log                       a log of any size
    dmesg | seatrial explain -                         what the kernel says
    seatrial explain uvm-node-missing                  the ID of a finding
    """
    findings = _findings(text)
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=1))
        return 0 if findings else 1
    console = Console(highlight=False)
    for finding in findings:
        print_finding(finding, console, explaining.sources(finding.id))
    if not findings and (several := explaining.candidates(" ".join(text or ()))):
        console.print("Several failures have these words; the whole line tells which:")
        for entry in several:
            console.print(f"  {entry.title}\n    seatrial explain {entry.id}", soft_wrap=True)
    elif not findings:
        console.print("No known failure found. To check the whole chain: seatrial doctor")
    return 0 if findings else 1


def _findings(text: list[str] | None) -> list[Finding]:
    if text is None and sys.stdin.isatty():
        raise UsageError(
            "Nothing to explain", run='seatrial explain "the error text"   # or: seatrial explain train.log'
        )
    if text is None or text == ["-"]:
        return explaining.explain_stream(sys.stdin.buffer)
    path = named_file(text)
    if path is not None:
        return explain_file(path)
    findings = explaining.explain_text(" ".join(text))
    if not findings and looks_like_a_file(text):
        raise UsageError(f"There is no file {text[0]}", run=f"ls {shlex.quote(str(Path(text[0]).parent))}")
    return findings
