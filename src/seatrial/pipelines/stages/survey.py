"""What ``seatrial up`` would do with each stage, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from seatrial.errors import DataError
from seatrial.job.model import Job
from seatrial.pipelines.stages.decide import Decision, decide
from seatrial.pipelines.stages.graph import Graph, Stage
from seatrial.pipelines.stages.record import Result
from seatrial.pipelines.stages.servers import decide_server
from seatrial.pipelines.stages.workshop import Workshop


@dataclass(frozen=True)
class Outlook:
    """One stage.

    Attributes:
        decision: None where it depends on what stages before it will write.
        begun: a run of it was begun, and is not its result yet.
    """

    stage: Stage
    job: Job
    decision: Decision | None
    begun: bool = False

    @property
    def holds(self) -> Result | None:
        return self.decision.holds if self.decision is not None and not self.begun else None

    @property
    def words(self) -> str:
        """``unchanged: same code …``, ``runs: train.py changed``."""
        if self.begun:
            return "goes on with a run that was begun before"
        if self.decision is None and self.stage.serve is not None:
            return f"replaced if the model of {self.stage.serve} changes"
        if self.decision is None:
            return f"runs if the outputs of {' or '.join(self.stage.needs)} change"
        does = "serves" if self.stage.serve is not None else "runs"
        return f"{'unchanged' if self.decision.holds else does}: {self.decision.why}"


def survey(graph: Graph, stages: Sequence[Stage], shop: Workshop, forced: Collection[str]) -> list[Outlook]:
    """An outlook for each stage, in the order given, in which needs come first.

    Raises SeatrialError: a stage's job cannot be meant, or one of its inputs is not there.
    """
    done: dict[str, Result] = {}
    outlooks = []
    for stage in stages:
        if stage.serve is not None:
            outlooks.append(_of_server(graph, stage, done, shop, force=stage.name in forced))
            continue
        last, begun = shop.records.last(stage.name), shop.records.next(stage.name)
        under_way = begun is not None and (last is None or begun.run != last.run)
        known = all(need in done for need in stage.needs)
        job = graph.job(stage, planning=not known)
        decision = None
        if known:
            decision = decide(stage, job, last, done, shop.digests, shop.environ, force=stage.name in forced)
        elif last is None:
            decision = Decision({}, (), "it has not run before")
        elif stage.name in forced:
            decision = Decision({}, (), "--force")
        else:
            decision = _whatever_comes(stage, job, last, shop)
        outlook = Outlook(stage, job, decision, under_way)
        if outlook.holds is not None:
            done[stage.name] = outlook.holds
        outlooks.append(outlook)
    return outlooks


def _of_server(graph: Graph, stage: Stage, done: Mapping[str, Result], shop: Workshop, *, force: bool) -> Outlook:
    """A server whose model is made by a stage that has still to run is decided on when that is done."""
    known = all(need in done for need in stage.needs)
    job = graph.job(stage, planning=not known)
    if known:
        return Outlook(stage, job, decide_server(stage, job, shop, force=force))
    up = shop.records.next(stage.name) is not None
    return Outlook(stage, job, None if up else Decision({}, (), "no server is up"))


def _whatever_comes(stage: Stage, job: Job, last: Result, shop: Workshop) -> Decision | None:
    """Why a stage has to run even if all that it needs comes out as it is now; None where it need not."""
    now = {need: result for need in stage.needs if (result := shop.records.last(need)) is not None}
    if len(now) < len(stage.needs):
        return None
    try:
        decision = decide(stage, job, last, now, shop.digests, shop.environ, force=False)
    except DataError:  # an input that a stage before it writes
        return None
    return None if decision.holds else decision
