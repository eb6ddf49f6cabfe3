"""One stage, from the start of its run, or from wherever an earlier command line left it, to outputs in their place."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from seatrial.errors import SeatrialError
from seatrial.job.model import Job
from seatrial.pipelines.stages.fingerprint import IMAGE_ID, image_id
from seatrial.pipelines.stages.graph import Stage
from seatrial.pipelines.stages.outputs import discard, is_empty, place
from seatrial.pipelines.stages.record import Result
from seatrial.pipelines.stages.workshop import Workshop
from seatrial.runs.adopt import handle_of
from seatrial.runs.finalise import finalise
from seatrial.runs.following.output import Stream
from seatrial.runs.following.watch import follow
from seatrial.runs.liveness import state_of
from seatrial.runs.run import PLACE_FOLDER, Run
from seatrial.runs.view import VIEW
from seatrial.system import nofollow

Write = Callable[[Stream, bytes], None]


class StageFailedError(SeatrialError):
    """The stage has no result; its exit code is the run's."""

    def __init__(self, message: str, exit_code: int, *, cause: str | None = None, run: str | None = None) -> None:
        super().__init__(message, cause=cause, run=run)
        self.exit_code = exit_code


def left_over(shop: Workshop, stage: Stage, result: Result) -> Run | None:
    """The run that an earlier command line began as this result, if it lives or has ended well; else None."""
    run = shop.store.run(result.run)
    if not run.folder.is_dir():
        return None
    handle = handle_of(run, shop.environ)
    if handle is None and run.summary() is None:
        return None  # its launcher was killed before it started anything
    if handle is not None and not run.ended and state_of(handle, shop.environ).is_live:
        return run
    receipt = finalise(run, shop.environ)
    if receipt is None or receipt.exit_code != 0:
        return None
    if result.wrote is None and any(is_empty(view_of(run), output) for output in stage.outputs):
        return None
    return run


def view_of(run: Run) -> Path:
    """Where a stage's run worked."""
    return run.place / VIEW


def see_through(
    shop: Workshop, stage: Stage, job: Job, run: Run, result: Result, write: Write, say: Callable[[str], None]
) -> Result:
    """Follow a run to its end and put its outputs in place.

    Raises:
        StageFailedError: it failed, or wrote nothing of what it declared. Its outputs stay with the run.
        SeatrialError: an engine or a disk gave up.
    """
    if result.wrote is None:
        follow(run, write, shop.environ, say=say)
        receipt = finalise(run, shop.environ)
        if receipt is None:
            raise StageFailedError("its run never started", 5, run=f"seatrial runs show {run.id}")
        if receipt.exit_code != 0:
            shop.records.drop(stage.name)
            words = receipt.exit_cause.words
            raise StageFailedError(words, receipt.exit_code, run=f"seatrial runs show {run.id}")
        result = _with_image_id(_wrote(shop, stage, run, result), job, shop)
        shop.records.ended_well(stage.name, result)
    assert result.wrote is not None
    for wrote in result.wrote:
        now = shop.digests.of(job.project, wrote.path)
        if now is None or now.digest != wrote.digest:  # else it was put there before somebody was killed
            place(view_of(run), job.project, wrote.path)
        discard(view_of(run), wrote.path)
    shop.records.placed(stage.name, result)
    _clear(run, job.project)
    return result


def _wrote(shop: Workshop, stage: Stage, run: Run, result: Result) -> Result:
    """The result with the digests of its outputs, still in the view."""
    view = view_of(run)
    missing = [output for output in stage.outputs if is_empty(view, output)]
    if missing:
        shop.records.drop(stage.name)
        raise StageFailedError(
            f"it ended well, but wrote nothing to its output{'s' * (len(missing) > 1)} {', '.join(missing)}",
            1,
            cause=_elsewhere(view),
            run=f"seatrial runs logs {run.id}",
        )
    found = [shop.digests.of(view, output) for output in stage.outputs]
    summary = run.summary() or {}
    return replace(
        result,
        wrote=tuple(each for each in found if each is not None),
        seconds=summary.get("seconds"),
        gpus=int(summary.get("gpus") or 0),
    )


def _with_image_id(result: Result, job: Job, shop: Workshop) -> Result:
    """An image that was pulled for this run has an ID now."""
    image = result.fingerprint.get("image")
    if not isinstance(image, dict) or image.get(IMAGE_ID, "") is not None:
        return result
    known = {**image, IMAGE_ID: image_id(job, shop.environ)}
    return replace(result, fingerprint={**result.fingerprint, "image": known})


def _elsewhere(view: Path) -> str:
    """Where its files may be, for the sentence that says they are missing."""
    named = [
        entry.path[len(str(view)) + 1 :]
        for entry in nofollow.files_below(view, most_entries=2000, skip={"__pycache__"})
        if not entry.name.endswith(".py")
    ]
    if named:
        return f"It did write {', '.join(shlex.quote(name) for name in sorted(named)[:3])}"
    return "Outputs are taken from its working folder; a path outside of it is not seen"


def _clear(run: Run, project: Path) -> None:
    """Delete the view, unless the target left something in it beside its outputs."""
    view = view_of(run)
    links_and_code_only = all(
        entry.name.endswith((".py", ".pyc")) for entry in nofollow.files_below(view, most_entries=5000, hidden=True)
    )
    if links_and_code_only:
        with nofollow.folder(project.resolve(), *PLACE_FOLDER, run.id) as place_of_run:
            nofollow.remove_tree(place_of_run, VIEW)
