"""``seatrial export`` and ``seatrial serve``: a trained model in another format, and behind a port."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from seatrial.cli import options as cli
from seatrial.errors import UsageError

if TYPE_CHECKING:
    from seatrial.cli.screen import Screen
    from seatrial.job.model import Job
    from seatrial.runs.models import TrainedModel, Verb

#: Options of ``python -m seatrial.serve``.
_PROGRAM = ("max_batch", "deadline_ms", "queue", "max_body", "fronts", "timeout_s")


@cli.command(examples=("seatrial export last --to onnx",))
@cli.takes_job
@cli.argument("reference", metavar="RUN|RECIPE|FILE", help="A run's ID or name, last, or a file.")
@cli.option("--to", required=True, metavar="FORMAT", help="onnx, pt2 or safetensors.")
@cli.option("--out", metavar="TEXT", help="Default: exports/NAME.onnx and so on.")
@cli.option("factory", "--model", metavar="MODULE:FACTORY", help="Makes the network that a file of weights belongs to.")
@cli.option("--tolerance", metavar="N", type=float, help="Largest difference allowed; default 1e-4 for fp32.")
@cli.option("input_shape", "--input-shape", metavar="N,N", multiple=True, help="Shape of one row, if not recorded.")
@cli.VERBOSE
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
    writes nothing. A card (.json) and examples are written next to it.
    """
    with cli.importing():
        from seatrial.cli.run import run_to_receipt
        from seatrial.cli.screen import Screen
        from seatrial.runs.jobs import check_format, export_job
        from seatrial.runs.models import EXPORT

    check_format(to)
    if tolerance is not None and not 0 < tolerance < float("inf"):
        raise UsageError(f"--tolerance {tolerance}: must be above 0", run="seatrial export … --tolerance 1e-4")
    if cli.target_arguments():
        raise UsageError("export takes nothing after --", run="seatrial export --help")
    screen = Screen(whole=verbose)
    job, model = _job_and_model(reference, "digits", flags, EXPORT, screen, with_network=factory is not None)
    shapes = [word for shape in input_shape for word in ("--input-shape", shape)]
    program = [*_given({"--model-factory": factory, "--tolerance": repr(tolerance) if tolerance else None}), *shapes]
    named = {"--to": to, "--out": out, "--model": factory, "--tolerance": tolerance and f"{tolerance:g}"}
    named |= {flag: flags.get(key) for flag, key in (("--on", "on"), ("--models", "models"))}
    source = model.of_run or reference if reference == "last" else reference
    typed = shlex.join(["export", source, *_given(named), *shapes])
    return run_to_receipt(export_job(job, model, to, out, options=program, typed=typed), cli.this_host(), screen)


def _job_and_model(
    word: str, recipe: str, flags: dict[str, Any], verb: Verb, screen: Screen, *, with_network: bool = False
) -> tuple[Job, TrainedModel]:
    """Return a job, whose recipe is set later, and the model that a word names; check its file, and print its notes."""
    from seatrial.cli.job import read_allowed_job
    from seatrial.runs.models import check_model_file, find_model
    from seatrial.runs.store import store_of

    store = store_of(flags.get("project"))
    job = read_allowed_job([recipe], {**flags, "project": flags.get("project") or store.project}, screen, arguments=[])
    model = find_model(word, job.models.source if job.models else job.project / "models", store, verb)
    check_model_file(model, verb, with_network=with_network)
    for warning in model.warnings:
        screen.note(f"warning: {warning}")
    return job, model


def _given(options: Mapping[str, object]) -> list[str]:
    """Return the words of the options that have a value."""
    return [word for flag, value in options.items() if value is not None for word in (flag, str(value))]


@cli.command(examples=("seatrial serve digits --port 8000",))
@cli.takes_job
@cli.argument("model", metavar="MODEL", help="A run, a trained recipe, or a model's file.")
@cli.option("--port", metavar="N", type=click.IntRange(1, 65535), default=8000, help="Port of this machine.")
@cli.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address of this machine; 0.0.0.0: all.")
@cli.option(
    "--token",
    metavar="[=VALUE]",
    is_flag=False,
    flag_value="",
    help="Require a token of requests: this one, $SEATRIAL_SERVE_TOKEN, or else a new one.",
)
@cli.option("--max-batch", metavar="N", type=click.IntRange(min=1), help="Most rows in one batch.")
@cli.option("--deadline-ms", metavar="N", type=click.IntRange(min=0), help="Longest wait for a batch to fill.")
@cli.option("--queue", metavar="N", type=click.IntRange(min=1), help="Rows that wait; more get 429.")
@cli.option("--max-body", metavar="SIZE", help="Largest request.")
@cli.option("--fronts", metavar="N", type=click.IntRange(min=1), help="HTTP processes; the model has one of its own.")
@cli.option(
    "timeout_s", "--request-timeout", metavar="SECONDS", type=click.IntRange(min=1), help="Longest time to an answer."
)
@cli.option("--detach", "-d", is_flag=True, help="Return once it answers; it goes on.")
@cli.RECEIPT_AS_JSON
@cli.VERBOSE
def serve(
    model: str,
    port: int,
    host: str,
    token: str | None,
    max_body: str | None,
    detach: bool,
    as_json: bool,
    verbose: bool,
    flags: dict[str, Any],
    **program: int | None,
) -> int:
    """Serve a trained model over HTTP: serve digits; serve last; serve model.onnx

    Listens on this machine alone unless --host is set. Ctrl-C ends it: what was accepted is answered first.
    """
    with cli.importing():
        from seatrial.cli.run import run_to_receipt
        from seatrial.cli.screen import Screen
        from seatrial.job.tables import TOKEN
        from seatrial.job.units import parse_bytes
        from seatrial.runs.jobs import serving_job
        from seatrial.runs.models import SERVE
        from seatrial.system.host import Host

    if arguments := cli.target_arguments():
        run = "seatrial serve --help"
        raise UsageError(f"The server takes no arguments of its own: {shlex.join(arguments)}", run=run)
    this, screen = cli.this_host(), Screen(json=as_json, whole=verbose)
    job, found = _job_and_model(model, "matmul", flags, SERVE, screen)
    if token is not None:
        secret = token or this.env.get(TOKEN) or secrets.token_urlsafe(24)
        this = Host(this.env, secrets={**this.secrets, TOKEN: secret})
    program["max_body"] = None if max_body is None else parse_bytes(max_body)
    options = _given({f"--{name.replace('_', '-')}": program[name] for name in _PROGRAM})
    typed = [found.of_run or model if model == "last" else model]  # with _given: the words that start the same again
    typed += _given({"--port": port if port != 8000 else None, "--host": host if host != "127.0.0.1" else None})
    typed += ["--token"] if token is not None else []
    typed += _given({f"--{key}": flags.get(key) for key in ("gpus", "on", "name", "models")})
    again, given, asks = shlex.join(typed), frozenset(flags), token is not None
    served = serving_job(job, found, port=port, address=host, token=asks, options=options, typed=again, given=given)
    if token == "" and TOKEN not in this.env:
        screen.note(f'token: {this.secrets[TOKEN]}   # curl -H "Authorization: Bearer …"; it is shown here alone')
    return run_to_receipt(served, this, screen, detach=detach, notifies=True)
