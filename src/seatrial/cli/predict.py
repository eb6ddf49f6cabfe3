"""``seatrial predict``: ask a trained model; a Job like any other, so it runs where torch is."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer

from seatrial.cli.job_flags import takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.session import carry_out
from seatrial.cli.typed_job import read_allowed_job
from seatrial.errors import UsageError
from seatrial.job.model import DataMount, Target
from seatrial.runs.launch import Prepared
from seatrial.system.typed_path import as_typed

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def predict(
    context: typer.Context,
    model: Annotated[Literal["spam"], typer.Argument(help="Model to query: spam.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Default: lines of stdin.")] = None,
    *,
    flags: dict[str, Any],
) -> int:
    """Classify each message as ham or spam, with the probability: predict spam "WINNER!! Call now"

    Uses the model that ``seatrial run spam`` saved in ./models, or in --models.
    """
    lines = [*(texts or []), *context.obj] or ([] if sys.stdin.isatty() else sys.stdin.read().splitlines())
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UsageError("No input text", run=f'seatrial predict {as_typed(model)} "text…"')
    screen = Screen(answer_only=True)
    job = read_allowed_job([model], [], flags, screen)
    models = job.models or DataMount(source=job.project / "models", read_only=True)
    if not (models.source / model / "config.json").is_file():
        raise UsageError(f"There is no trained {model} model in {models.source}", run=f"seatrial run {model}")
    target = Target(kind="recipe", value="predict", args=(model,))

    def hand_over(prepared: Prepared) -> None:
        (prepared.run.outputs / "input.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    asked = job.model_copy(update={"target": target, "models": models})
    return carry_out(asked, dict(os.environ), screen, before_start=hand_over)
