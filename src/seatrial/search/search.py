"""Search: everything that those who carry trials out need, in one object."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from seatrial.errors import SeatrialError
from seatrial.job.model import Job
from seatrial.search.endings import without_effect
from seatrial.search.engine import Engine, Pruner
from seatrial.search.objective import Objective
from seatrial.search.settings import varied, ways_in
from seatrial.search.space import Settings, Space
from seatrial.search.study import Study
from seatrial.search.trial import Trial

Say = Callable[[str], None]


@dataclass
class Search:
    """A study at work in this process.

    Attributes:
        job: what a trial runs, before its settings.
        pruner: None: no trial is ended early.
        most: trials of the study at most; None: until the engine has no more.
        parallel: trials at once, of this process; 0: as many as its runner has room for.
        address: HOST:PORT of the Ray cluster, as typed.
        ends_at: ``time.monotonic()`` at which the budget is used up; None: no budget.
        say: a line for the terminal.
        building: while what it gives holds, what that gives takes the lines of a build or a pull; None: ``say`` tells
            of it.
        page_s, page_trials: when the page was written last, and with how many ended trials.
        tick: what the terminal does at each ``look``.
        over: set: no further trial is begun, and those that run are stopped.
        interrupted: by the user. killed: who does not want to wait for running trials.
        problem: what ended the search early; raised at its end.
    """

    study: Study
    space: Space
    objective: Objective | None
    engine: Engine
    pruner: Pruner | None
    job: Job
    environ: Mapping[str, str]
    say: Say
    most: int | None = None
    parallel: int = 1
    address: str | None = None
    ends_at: float | None = None
    over: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False
    killed: threading.Event = field(default_factory=threading.Event)
    building: Callable[[], AbstractContextManager[Say]] | None = None
    tick: Callable[[], None] = lambda: None
    page_s: float = field(default_factory=time.monotonic)
    page_trials: int = 0
    problem: SeatrialError | None = None

    @property
    def expected(self) -> int | None:
        """Trials that there will be; None: until the budget is used up."""
        if not self.space.is_finite:
            return self.most
        return self.space.size if self.most is None else min(self.most, self.space.size)

    def what(self) -> str:
        """In words, for the beginning."""
        definition = self.study.definition
        most = self.expected
        of = f", at most {most} trial{'s' * (most != 1)}" if most is not None else ""
        prune = f", {definition.prune} prunes" if definition.prune != "none" else ""
        objective = f" for {self.objective}" if self.objective is not None else ""
        return f"{definition.search} search over {', '.join(definition.space)}{objective}{of}{prune}"

    def remarks(self, trials: Sequence[Trial]) -> list[str]:
        """What the user should know of the whole study at its end."""
        return [f"{name} made no difference to any number that the script reported" for name in without_effect(trials)]

    def finish(self) -> list[Trial]:
        """All trials; this searcher leaves the study, and where none is left to do, that is marked as ended."""
        trials = self.study.trials()
        if self.problem is not None:
            self.study.put("ended", self.problem.message)
        elif not self.interrupted and all(trial.ending is not None for trial in trials) and not self._stopped(trials):
            self.study.put("ended", "complete")
        self.study.leave()
        return trials

    def leave(self, problem: SeatrialError) -> None:
        """This searcher cannot go on; the study has not ended: the same command goes on with it."""
        self.study.put("problem", problem.message)
        self.study.leave()

    def _stopped(self, trials: Sequence[Trial]) -> bool:
        """The budget was used up before all was tried."""
        return self.time_is_over() and (self.expected is None or len(trials) < self.expected)

    def look(self) -> None:
        """Called several times a second by whoever carries trials out, in the main thread."""
        self.study.seen()
        self.tick()

    def ask(self) -> Trial | None:
        """The next trial; None: no more, or the time is over."""
        if self.time_is_over():
            return None
        return self.study.ask(self._choose, most=self.most)

    def time_is_over(self) -> bool:
        """Whether no trial is to go on."""
        return self.over.is_set() or (self.ends_at is not None and time.monotonic() >= self.ends_at)

    def why_stop(self) -> tuple[str, str | None] | None:
        """(origin, why) with which running trials are stopped now; None: they go on."""
        if not self.time_is_over():
            return None
        if self.interrupted:
            return "user", None
        return "search", "the search has ended" if self.over.is_set() else "its time was over"

    def _choose(self, trials: Sequence[Trial]) -> Settings | None:
        return self.engine.ask(self.space, self.objective, trials)

    def job_of(self, trial: Trial) -> Job:
        """The job that runs a trial: its settings as flags, arguments or variables of the target."""
        return varied(self.job, trial.settings, ways_in(self.job, self.space.names))

    def report(self, trial: Trial, step: int, value: float) -> str | None:
        """Write a value down; why the trial is to be stopped, or None."""
        self.study.report(trial.number, step, value)
        if self.pruner is None or self.objective is None:
            return None
        trials = self.study.trials()
        now = trials[trial.number]
        answer = self.pruner.judge(self.objective, trials, now)
        if answer.notes != now.notes:
            self.study.note(trial.number, answer.notes)
        return answer.why

    def end(self, problem: SeatrialError) -> None:
        """End the search early; the first reason counts."""
        self.problem = self.problem or problem
        self.over.set()
