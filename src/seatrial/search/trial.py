"""Trial: one combination of settings, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seatrial.search.space import Settings

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

#: ``waiting``: its searcher went before the run began, so that it is run again. ``stopped``: by the user, or because
#: the search's time was over. ``not followed``: its searcher has gone while it runs; shown, never stored.
State = Literal["waiting", "running", "done", "pruned", "failed", "stopped", "not followed"]


@dataclass(frozen=True)
class TrialReport:
    """A value of the objective that the script reported.

    Attributes:
        step: 1 for the first report, 2 for the second …
    """

    step: int
    value: float


@dataclass(frozen=True)
class Ending:
    """The end of a trial.

    Attributes:
        value: the objective's last value; None: never reported.
        outcome: the receipt's headline, or why there is none.
        measured: ``seconds``, ``images_per_s``, ``energy_j``, ``utilization_pct``, ``cpu_s``: what is known of them.
        metrics: last values of all that the target reported. printed: names of those that it only printed.
        series: the full name under which the objective came several times while it ran; None: none did.
    """

    state: State
    value: float | None = None
    outcome: str = ""
    exit_code: int | None = None
    measured: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: str | None = None
    printed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """One trial as the study has it.

    Attributes:
        number: from 0, in the order in which they were made.
        run_id: None before its run was made.
        begun_at, ended_at: seconds since the epoch.
    """

    number: int
    settings: Settings
    state: State
    run_id: str | None = None
    begun_at: float | None = None
    ended_at: float | None = None
    reports: tuple[TrialReport, ...] = ()
    ending: Ending | None = None

    @property
    def value(self) -> float | None:
        """Return the trial's last value so far; None if none has come."""
        if self.ending is not None and self.ending.value is not None:
            return self.ending.value
        return self.reports[-1].value if self.reports else None

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as an object for results.json and --json."""
        end = self.ending or Ending(self.state)
        measured = {key: end.measured.get(key) for key in ("seconds", "images_per_s", "energy_j", "utilization_pct")}
        return {
            "number": self.number,
            "settings": self.settings,
            "run_id": self.run_id,
            "state": self.state,
            "value": self.value,
            "exit_code": end.exit_code,
            "outcome": end.outcome,
            **measured,
            "metrics": end.metrics,
            "reports": [[report.step, report.value] for report in self.reports],
        }


def trial_of(frozen: FrozenTrial) -> Trial:
    """Return the trial that Optuna keeps."""
    kept = frozen.user_attrs
    ending = Ending(**kept["ending"]) if kept.get("ending") and frozen.state.is_finished() else None
    state = "waiting" if kept.get("owner") is None else "running"
    return Trial(
        number=frozen.number,
        settings=dict(kept["settings"]),
        state=ending.state if ending is not None else state,  # type: ignore[arg-type]
        run_id=kept.get("run"),
        begun_at=kept.get("begun_at"),
        ended_at=kept.get("ended_at"),
        reports=tuple(TrialReport(step, value) for step, value in sorted(frozen.intermediate_values.items())),
        ending=ending,
    )
