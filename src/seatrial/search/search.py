"""Search: everything that those who carry trials out need, in one object."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.errors import SeatrialError
from seatrial.job.model import Job
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
        parallel: trials at once, of this process.
        ends_at: ``time.monotonic()`` at which the budget is used up; None: no budget.
        say: a line for the terminal.
        over: set: no further trial is begun, and those that run are stopped.
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
    ends_at: float | None = None
    over: threading.Event = field(default_factory=threading.Event)
    problem: SeatrialError | None = None

    def ask(self) -> Trial | None:
        """The next trial; None: no more, or the time is over."""
        if self.over.is_set() or (self.ends_at is not None and time.monotonic() >= self.ends_at):
            return None
        return self.study.ask(self._choose, most=self.most)

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
