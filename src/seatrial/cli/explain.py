"""``seatrial explain``: what an error text, or a log on stdin, means, and what fixes it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from seatrial.doctor import explain as explaining
from seatrial.doctor.terminal import print_finding
from seatrial.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def explain(
    text: Annotated[
        list[str] | None, typer.Argument(help="The error message, or a finding's ID; - reads stdin.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Explain an error, or a log on stdin: cause and fix of every known failure.

    Exit code 0 if a known failure was found, 1 if not.

    seatrial explain "CUDA error: no kernel image is available"     seatrial explain < train.log
    """
    if text and text != ["-"]:
        findings = explaining.explain_text(" ".join(text))
    elif text is None and sys.stdin.isatty():
        raise UsageError(
            "Nothing to explain", run='seatrial explain "the error text"   # or: seatrial explain < train.log'
        )
    else:
        findings = explaining.explain_stream(sys.stdin.buffer)
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=1))
        return 0 if findings else 1
    console = Console(highlight=False)
    for finding in findings:
        print_finding(finding, console, explaining.sources(finding.id))
    if not findings:
        console.print("No known failure found. To check the whole chain: seatrial doctor")
    return 0 if findings else 1
