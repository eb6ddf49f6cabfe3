"""``seatrial cdi``: write a CDI spec of this machine's GPUs, and check those that are there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seatrial.doctor import report, terminal
from seatrial.doctor.chain import CHAIN
from seatrial.doctor.examine import examine
from seatrial.doctor.facts.machine import Machine
from seatrial.doctor.fixing import cdi_spec, fixes
from seatrial.system.files import make_folder, write_atomically

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings=_HELP,
    help="CDI specs: how Podman, and Docker 25 and later, take a GPU by its name.",
)


@app.command(context_settings=_HELP)
def generate(
    output: Annotated[Path, typer.Option("--output", "-o", help="The spec file; - prints it.")] = Path(fixes.SPEC),
) -> int:
    """Write a CDI spec from NVML and the driver's files; no toolkit needed.

    Podman, and Docker 25 and later, then accept --device nvidia.com/gpu=all. Rerun after a driver update.
    """
    text = cdi_spec.to_yaml(fixes.spec_of(Machine(os.environ)))
    if str(output) == "-":
        print(text, end="")
        return report.EXIT_OK
    make_folder(output.parent)
    write_atomically(output, text.encode())
    Console(highlight=False).print(f"{output} written; try: podman run --device nvidia.com/gpu=all …", soft_wrap=True)
    return report.EXIT_OK


@app.command(context_settings=_HELP)
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Find stale, unreadable or duplicate specs, or no /dev/nvidia-uvm. Exit codes: 0 ok, 1 warnings, 2 broken."""
    console = Console(highlight=False)
    layers = [layer for layer in CHAIN if layer.name == "cdi"]
    show = None if as_json else lambda layer, results: terminal.print_layer(layer, results, console, verbose=True)
    results = examine(Machine(os.environ), layers, show)
    if as_json:
        print(json.dumps(report.to_dict(results), indent=1))
    return report.exit_code(results)
