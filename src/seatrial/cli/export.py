"""``seatrial export``: a trained model in another format; a Job like any other, so it runs where torch is."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import typer

from seatrial.cli.job_flags import takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.session import carry_out
from seatrial.cli.typed import Verbose
from seatrial.cli.typed_job import read_allowed_job
from seatrial.errors import UsageError
from seatrial.runs.export_job import Asked, check_format, export_job
from seatrial.runs.find_model import find_model
from seatrial.runs.model_file import check_model_file
from seatrial.runs.store import RunStore
from seatrial.runs.trained_model import EXPORT

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def export(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="RUN|RECIPE|FILE", help="A run's ID or name, last, or a file.")],
    to: Annotated[str, typer.Option("--to", help="onnx, pt2 or safetensors.", metavar="FORMAT")],
    out: Annotated[str | None, typer.Option("--out", help="Default: exports/NAME.onnx and so on.")] = None,
    factory: Annotated[
        str | None,
        typer.Option("--model", metavar="MODULE:FACTORY", help="Makes the network that a file of weights belongs to."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="Largest difference allowed; default 1e-4 for fp32.")
    ] = None,
    input_shape: Annotated[
        list[str] | None, typer.Option("--input-shape", metavar="N,N", help="Of one row, where nothing tells it.")
    ] = None,
    verbose: Verbose = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Export a trained model, compared with the original on real inputs: export last --to onnx

    Of a recipe, a .pt2 file, or weights with --model module:factory. Beyond the tolerance it fails and
    writes nothing. A card (.json) and examples are written beside it.
    """
    check_format(to)
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance}: must be above 0", run="seatrial export … --tolerance 1e-4")
    if context.obj:
        raise UsageError("export takes nothing after --", run="seatrial export --help")
    screen = Screen(whole=verbose)
    job = read_allowed_job(["digits"], [], flags, screen)
    models = job.models.source if job.models else job.project / "models"
    model = find_model(reference, job.project, models, RunStore(job.project, os.environ), EXPORT)
    check_model_file(model, EXPORT, with_network=factory is not None)
    for warning in model.warnings:
        screen.say(f"warning: {warning}")
    words = ["--model-factory", factory] if factory else []
    words += ["--tolerance", repr(tolerance)] if tolerance else []
    words += [word for shape in input_shape or () for word in ("--input-shape", shape)]
    named = {"--to": to, "--out": out, "--model": factory, "--tolerance": tolerance and f"{tolerance:g}"}
    named |= {flag: flags.get(key) for flag, key in (("--on", "on"), ("--models", "models"))}
    typed = ["export", model.of_run or reference if reference == "last" else reference]
    typed += [word for flag, value in named.items() if value is not None for word in (flag, str(value))]
    typed += [word for shape in input_shape or () for word in ("--input-shape", shape)]
    asked = Asked(to, out, tuple(words), shlex.join(typed))
    return carry_out(export_job(job, model, asked), dict(os.environ), screen)
