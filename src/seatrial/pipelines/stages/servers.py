"""Stages that serve, while they do: whether one still serves what it should, and seeing one through to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.pipelines.stages.decide import Decision
from seatrial.pipelines.stages.fingerprint import difference, fingerprint
from seatrial.pipelines.stages.graph import Stage
from seatrial.pipelines.stages.record import Result
from seatrial.pipelines.stages.workshop import Workshop
from seatrial.runs.following.output import Stream
from seatrial.runs.run import Run
from seatrial.runs.serving import free_port_near, is_ready, refuse_taken_port

Say = Callable[[str], None]
Write = Callable[[Stream, bytes], None]


def decide_server(stage: Stage, job: Job, shop: Workshop, *, force: bool) -> Decision:
    """Whether the server that was started last still serves this model in this way; else why one is started."""
    assert job.serve is not None
    made, _ = fingerprint(stage, job, shop.digests, {}, shop.environ)
    last = shop.records.next(stage.name)
    run = None if last is None else shop.store.run(last.run)
    if last is None or run is None or run.ended or run.handle() is None:
        return Decision(made, (), "no server is up")
    reason = "--force" if force else difference(last.fingerprint, made)
    if reason is not None:
        return Decision(made, (), reason)
    if not is_ready(job.serve):
        return Decision(made, (), f"{job.serve.url} does not answer")
    return Decision(made, (), f"still serves at {job.serve.url}, the same model", replace(last, wrote=()))


def refuse_port(stage: Stage, job: Job, shop: Workshop) -> None:
    """Raises UsageError: somebody else listens there, told before anything is built."""
    assert job.serve is not None
    begun = shop.records.next(stage.name)
    if begun is not None and not shop.store.run(begun.run).ended:
        return  # the server that is to be replaced may hold it
    try:
        refuse_taken_port(job, shop.store)
    except UsageError as error:
        free = free_port_near(job.serve.address, job.serve.port)
        raise UsageError(
            f"stages.{stage.name}: {error.message}", run=f"in seatrial.toml: [stages.{stage.name}] port = {free}"
        ) from None


def stop_earlier(stage: Stage, shop: Workshop, say: Say, why: str) -> None:
    """End the server that an earlier command line left, whatever it served."""
    from seatrial.runs import run_actions

    begun = shop.records.next(stage.name)
    run = None if begun is None else shop.store.run(begun.run)
    if run is not None and run.folder.is_dir() and run_actions.is_live(run, shop.environ):
        say(f"{stage.name}: replaces {run.id}: {why}")
        run_actions.stop(run, shop.environ)
    shop.records.drop(stage.name)


def serve_through(shop: Workshop, stage: Stage, run: Run, result: Result, write: Write, say: Say) -> Result:
    """Follow a server until it is stopped. Raises StageFailedError: it ended by itself."""
    from seatrial.pipelines.stages.one_stage import StageFailedError
    from seatrial.runs.finalise import finalise
    from seatrial.runs.following.watch import follow

    follow(run, write, shop.environ, say=say)
    receipt = finalise(run, shop.environ)
    shop.records.drop_run(stage.name, run.id)
    if receipt is None:
        raise StageFailedError("its server never started", 5, run=f"seatrial runs show {run.id}")
    if receipt.exit_code != 0 or receipt.exit_cause.id not in ("stopped", "finished"):
        raise StageFailedError(receipt.exit_cause.words, receipt.exit_code or 1, run=f"seatrial runs show {run.id}")
    return replace(result, wrote=(), seconds=receipt.measurements.wall_s)
