"""``seatrial serve``: a trained model behind a port; a Job like any other, whose target is the server."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from seatrial.cli.job_flags import takes_job
from seatrial.cli.screens.run import Screen
from seatrial.cli.session import carry_out
from seatrial.cli.typed import Verbose, check_folder
from seatrial.cli.typed_job import read_allowed_job
from seatrial.errors import UsageError
from seatrial.job.serving import TOKEN
from seatrial.job.units import parse_bytes
from seatrial.runs.find_model import find_model
from seatrial.runs.model_file import check_model_file
from seatrial.runs.nearest import store_of
from seatrial.runs.serving_job import Options, serving_job
from seatrial.runs.trained_model import SERVE

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def reworded(words: list[str]) -> list[str]:
    """``--token`` alone asks for a new one: typer's options all take a value, or none does."""
    return ["--token=" if word == "--token" else word for word in words]


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@takes_job
def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run, a trained recipe, a model's file, or file.py:Class.")
    ],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of this machine.")] = 8000,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address of this machine; 0.0.0.0: all.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="[=VALUE]", help=f"Ask requests for a token: this one, ${TOKEN}, or else a new one."
        ),
    ] = None,
    max_batch: Annotated[int | None, typer.Option("--max-batch", min=1, help="Most rows in one batch.")] = None,
    deadline_ms: Annotated[
        int | None, typer.Option("--deadline-ms", min=0, help="Longest wait for a batch to fill.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=1, help="Rows that wait; more get 429.")] = None,
    max_body: Annotated[str | None, typer.Option("--max-body", metavar="SIZE", help="Largest request.")] = None,
    fronts: Annotated[
        int | None, typer.Option("--fronts", min=1, help="Processes that talk HTTP beside the one that computes.")
    ] = None,
    request_timeout: Annotated[
        int | None, typer.Option("--request-timeout", metavar="SECONDS", min=1, help="Longest time to an answer.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it answers; it goes on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON; output goes to stderr.")] = False,
    verbose: Verbose = False,
    *,
    flags: dict[str, Any],
) -> int:
    """Serve a trained model over HTTP: serve digits; serve last; serve model.onnx; serve serve.py:Model

    Listens on this machine alone unless --host says otherwise. Ctrl-C ends it: what was accepted is answered first.
    """
    if context.obj:
        raise UsageError(
            f"The server takes no arguments of its own: {shlex.join(context.obj)}", run="seatrial serve --help"
        )
    given = frozenset(flags)
    project = check_folder(flags.get("project") or Path.cwd()).absolute()
    screen = Screen(json=as_json, whole=verbose)
    job = read_allowed_job(["matmul"], [], flags, screen)
    models = job.models.source if job.models is not None else project / "models"
    found = find_model(model, project, models, store_of(flags.get("project")), SERVE)
    check_model_file(found, SERVE)
    environ = dict(os.environ)
    if token is not None:
        environ[TOKEN] = token or environ.get(TOKEN) or secrets.token_urlsafe(24)
    options = Options(
        port=port,
        address=host,
        token=token is not None,
        program=_program(max_batch, deadline_ms, queue, max_body, fronts, request_timeout),
        typed=_typed(found.of_run or model if model == "last" else model, port, host, token is not None, flags),
    )
    asked = serving_job(job, found, options, given)
    if token == "" and TOKEN not in os.environ:
        screen.say(f'token: {environ[TOKEN]}   # curl -H "Authorization: Bearer …"; it is shown here alone')
    for warning in found.warnings:
        screen.say(f"warning: {warning}")
    return carry_out(asked, environ, screen, detach=detach, notifies=True)


def _program(
    max_batch: int | None,
    deadline_ms: int | None,
    queue: int | None,
    max_body: str | None,
    fronts: int | None,
    timeout_s: int | None,
) -> tuple[str, ...]:
    """Options as ``python -m seatrial.serve`` takes them."""
    body_bytes = None if max_body is None else parse_bytes(max_body)
    given = {
        "--max-batch": max_batch,
        "--deadline-ms": deadline_ms,
        "--queue": queue,
        "--max-body": body_bytes,
        "--fronts": fronts,
        "--timeout-s": timeout_s,
    }
    return tuple(word for flag, value in given.items() if value is not None for word in (flag, str(value)))


def _typed(model: str, port: int, host: str, token: bool, flags: dict[str, Any]) -> str:
    """What follows ``seatrial serve`` to start the same again, as far as it matters to say so."""
    words = [model]
    words += ["--port", str(port)] if port != 8000 else []
    words += ["--host", host] if host != "127.0.0.1" else []
    words += ["--token"] if token else []
    for key, flag in (("gpus", "--gpus"), ("on", "--on"), ("name", "--name"), ("models", "--models")):
        words += [flag, str(flags[key])] if flags.get(key) is not None else []
    return shlex.join(words)
