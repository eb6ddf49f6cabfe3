"""``seatrial export`` and ``seatrial serve``: a trained model in another format, and behind a port."""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import Any

import click

from seatrial.cli.options import (
    RECEIPT_AS_JSON,
    VERBOSE,
    argument,
    command,
    option,
    takes_job,
    target_arguments,
    this_host,
)
from seatrial.cli.root import importing
from seatrial.cli.typed import check_folder
from seatrial.errors import UsageError


@command(examples=("seatrial export last --to onnx",))
@takes_job
@argument("reference", metavar="RUN|RECIPE|FILE", help="A run's ID or name, last, or a file.")
@option("--to", required=True, metavar="FORMAT", help="onnx, pt2 or safetensors.")
@option("--out", metavar="TEXT", help="Default: exports/NAME.onnx and so on.")
@option("factory", "--model", metavar="MODULE:FACTORY", help="Makes the network that a file of weights belongs to.")
@option("--tolerance", metavar="N", type=float, help="Largest difference allowed; default 1e-4 for fp32.")
@option("input_shape", "--input-shape", metavar="N,N", multiple=True, help="Of one row, where nothing tells it.")
@VERBOSE
def export(
    reference: str,
    to: str,
    out: str | None,
    factory: str | None,
    tolerance: float | None,
    input_shape: tuple[str, ...],
    verbose: bool,
    flags: dict[str, Any],
) -> int:
    """Export a trained model, compared with the original on real inputs: export last --to onnx

    Of a recipe, a .pt2 file, or weights with --model module:factory. Beyond the tolerance it fails and
    writes nothing. A card (.json) and examples are written beside it.
    """
    with importing():
        from seatrial.cli.screen import Screen
        from seatrial.cli.session import carry_out
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.runs.export_job import Asked, check_format, export_job
        from seatrial.runs.models import EXPORT, check_model_file, find_model
        from seatrial.runs.store import RunStore

    check_format(to)
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance}: must be above 0", run="seatrial export … --tolerance 1e-4")
    if target_arguments():
        raise UsageError("export takes nothing after --", run="seatrial export --help")
    screen = Screen(whole=verbose)
    job = read_allowed_job(["digits"], [], flags, screen)
    models = job.models.source if job.models else job.project / "models"
    model = find_model(reference, job.project, models, RunStore(job.project, this_host()), EXPORT)
    check_model_file(model, EXPORT, with_network=factory is not None)
    for warning in model.warnings:
        screen.say(f"warning: {warning}")
    words = ["--model-factory", factory] if factory else []
    words += ["--tolerance", repr(tolerance)] if tolerance else []
    words += [word for shape in input_shape for word in ("--input-shape", shape)]
    named = {"--to": to, "--out": out, "--model": factory, "--tolerance": tolerance and f"{tolerance:g}"}
    named |= {flag: flags.get(key) for flag, key in (("--on", "on"), ("--models", "models"))}
    typed = ["export", model.of_run or reference if reference == "last" else reference]
    typed += [word for flag, value in named.items() if value is not None for word in (flag, str(value))]
    typed += [word for shape in input_shape for word in ("--input-shape", shape)]
    asked = Asked(to, out, tuple(words), shlex.join(typed))
    return carry_out(export_job(job, model, asked), this_host(), screen)


@command(examples=("seatrial serve digits --port 8000",))
@takes_job
@argument("model", metavar="MODEL", help="A run, a trained recipe, a model's file, or file.py:Class.")
@option("--port", metavar="N", type=click.IntRange(1, 65535), default=8000, help="Port of this machine.")
@option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address of this machine; 0.0.0.0: all.")
@option(
    "--token",
    metavar="[=VALUE]",
    is_flag=False,
    flag_value="",
    help="Require a token of requests: this one, $SEATRIAL_SERVE_TOKEN, or else a new one.",
)
@option("--max-batch", metavar="N", type=click.IntRange(min=1), help="Most rows in one batch.")
@option("--deadline-ms", metavar="N", type=click.IntRange(min=0), help="Longest wait for a batch to fill.")
@option("--queue", metavar="N", type=click.IntRange(min=1), help="Rows that wait; more get 429.")
@option("--max-body", metavar="SIZE", help="Largest request.")
@option("--fronts", metavar="N", type=click.IntRange(min=1), help="Processes for HTTP beside the one that computes.")
@option("--request-timeout", metavar="SECONDS", type=click.IntRange(min=1), help="Longest time to an answer.")
@option("--detach", "-d", is_flag=True, help="Return once it answers; it goes on.")
@RECEIPT_AS_JSON
@VERBOSE
def serve(
    model: str,
    port: int,
    host: str,
    token: str | None,
    detach: bool,
    as_json: bool,
    verbose: bool,
    flags: dict[str, Any],
    **program: Any,
) -> int:
    """Serve a trained model over HTTP: serve digits; serve last; serve model.onnx; serve serve.py:Model

    Listens on this machine alone unless --host says otherwise. Ctrl-C ends it: what was accepted is answered first.
    """
    with importing():
        from seatrial.cli.screen import Screen
        from seatrial.cli.session import carry_out
        from seatrial.cli.typed_job import read_allowed_job
        from seatrial.job.tables import TOKEN
        from seatrial.runs.models import SERVE, check_model_file, find_model
        from seatrial.runs.serving_job import Options, serving_job
        from seatrial.runs.store import store_of

    if arguments := target_arguments():
        raise UsageError(
            f"The server takes no arguments of its own: {shlex.join(arguments)}", run="seatrial serve --help"
        )
    given = frozenset(flags)
    project = check_folder(flags.get("project") or Path.cwd()).absolute()
    named_project = flags.get("project")
    screen = Screen(json=as_json, whole=verbose)
    job = read_allowed_job(["matmul"], [], flags, screen)
    models = job.models.source if job.models is not None else project / "models"
    found = find_model(model, project, models, store_of(named_project), SERVE)
    check_model_file(found, SERVE)
    this = this_host()
    if token is not None:
        this = this.with_secrets({TOKEN: token or this.env.get(TOKEN) or secrets.token_urlsafe(24)})
    options = Options(
        port=port,
        address=host,
        token=token is not None,
        program=_program(**program),
        typed=_typed(found.of_run or model if model == "last" else model, port, host, token is not None, flags),
    )
    asked = serving_job(job, found, options, given)
    if token == "" and TOKEN not in this.env:
        screen.say(f'token: {this.secrets[TOKEN]}   # curl -H "Authorization: Bearer …"; it is shown here alone')
    for warning in found.warnings:
        screen.say(f"warning: {warning}")
    return carry_out(asked, this, screen, detach=detach, notifies=True)


def _program(
    max_batch: int | None,
    deadline_ms: int | None,
    queue: int | None,
    max_body: str | None,
    fronts: int | None,
    request_timeout: int | None,
) -> tuple[str, ...]:
    """Return the options as ``python -m seatrial.serve`` takes them."""
    from seatrial.job.units import parse_bytes

    given = {
        "--max-batch": max_batch,
        "--deadline-ms": deadline_ms,
        "--queue": queue,
        "--max-body": None if max_body is None else parse_bytes(max_body),
        "--fronts": fronts,
        "--timeout-s": request_timeout,
    }
    return tuple(word for flag, value in given.items() if value is not None for word in (flag, str(value)))


def _typed(model: str, port: int, host: str, token: bool, flags: dict[str, Any]) -> str:
    """Return the words after ``seatrial serve`` that start the same again, as far as they matter."""
    words = [model]
    words += ["--port", str(port)] if port != 8000 else []
    words += ["--host", host] if host != "127.0.0.1" else []
    words += ["--token"] if token else []
    for key, flag in (("gpus", "--gpus"), ("on", "--on"), ("name", "--name"), ("models", "--models")):
        words += [flag, str(flags[key])] if flags.get(key) is not None else []
    return shlex.join(words)
