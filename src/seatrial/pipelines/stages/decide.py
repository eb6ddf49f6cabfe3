"""Whether a stage has to run, and why: its last result holds while nothing that it follows from has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.job.model import Job
from seatrial.pipelines.stages.digests import Digest, Digests
from seatrial.pipelines.stages.fingerprint import difference, fingerprint, needed_digests
from seatrial.pipelines.stages.graph import Stage
from seatrial.pipelines.stages.record import Result


@dataclass(frozen=True)
class Decision:
    """What to do with a stage whose needs are met.

    Attributes:
        why: the reason, in words. holds: the result that still stands; None: run it.
        read: its declared inputs, and the outputs that it needs.
    """

    fingerprint: dict[str, Any]
    read: tuple[Digest, ...]
    why: str
    holds: Result | None = None


def decide(
    stage: Stage,
    job: Job,
    last: Result | None,
    done: Mapping[str, Result],
    digests: Digests,
    environ: Mapping[str, str],
    *,
    force: bool,
) -> Decision:
    """Compare a stage with its last result.

    Args:
        done: results of the stages that it needs, their outputs in place.

    Raises DataError: a declared input is not there.
    """
    outputs = {need: done[need].wrote or () for need in stage.needs}
    needed = needed_digests(stage.needs, outputs, {need: done[need].run for need in stage.needs})
    made, inputs = fingerprint(stage, job, digests, needed, environ)
    read = tuple({each.path: each for each in (*inputs, *(d for each in outputs.values() for d in each))}.values())
    if last is None or last.wrote is None:
        return Decision(made, read, "it has not run before")
    if force:
        return Decision(made, read, "--force")
    reason = difference(last.fingerprint, made) or _changed_output(job.project, last, digests)
    if reason is not None:
        return Decision(made, read, reason)
    return Decision(made, read, _same(stage), last)


def _changed_output(project: Path, last: Result, digests: Digests) -> str | None:
    """What has become of its outputs, in words; None where they are as they were written."""
    for wrote in last.wrote or ():
        now = digests.of(project, wrote.path)
        if now is None:
            return f"its output {wrote.path} is gone"
        if now.digest != wrote.digest:
            return f"its output {wrote.path} was changed since"
    return None


def _same(stage: Stage) -> str:
    parts = ["code", "arguments", "image"]
    parts += ["inputs"] if stage.inputs else []
    parts += [f"outputs of {' and '.join(stage.needs)}"] if stage.needs else []
    return f"same {', '.join(parts[:-1])} and {parts[-1]}"
