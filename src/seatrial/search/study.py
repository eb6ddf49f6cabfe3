"""Keep a study: Optuna's journal with all that is known of a search; several processes of one machine may work on it.

A trial is made (``ask``), gets a run (``begin``), reports values and ends (``tell``). Each change is a whole line of
the journal, so that a killed process leaves whole trials behind. ``optuna-dashboard`` opens the same file.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from seatrial.errors import DiskError
from seatrial.probe.processes import file_bytes
from seatrial.search.request import Definition, require_optuna
from seatrial.search.space import Settings, sample, sampler_of
from seatrial.search.trial import Ending, Trial, trial_of
from seatrial.system.records import Process

if TYPE_CHECKING:
    import optuna
    from optuna.pruners import BasePruner
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

FILE = "study.journal"
#: The best 1/REDUCTION of the trials at a rung continue. Source: Li et al., "A System for Massively Parallel
#: Hyperparameter Tuning" (2020), which uses 4; Optuna's default, too.
REDUCTION = 4
#: Reports before the first judgement. After one the settings that end best are often not ahead: on digits, judged then,
#: the grid's best setting was pruned in nine of ten searches; after two, in one (docs/search.md, 2026-11-22).
FIRST_RUNG = 2
#: Trials that the median is of, at least; Optuna's default.
MEDIAN_OF = 5
#: Settings that a sampler names again although they were tried, before the search counts as used up.
_MOST_REPEATS = 100


class Study:
    """A study's file, study.journal; ``create`` makes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._joined = False

    @classmethod
    def create(cls, path: Path, definition: Definition) -> Study:
        """Create the study at ``path``, where none is. Raises DiskError."""
        import optuna

        study = cls(path)
        with study._errors():
            objective = definition.parsed_objective()
            lower = objective is None or objective.lower_is_better
            optuna.create_study(
                storage=study._storage,
                study_name=path.parent.name,
                direction="minimize" if lower else "maximize",
                load_if_exists=True,  # its maker was killed before it was defined
            ).set_user_attr("definition", asdict(definition))
        return study

    @property
    def is_made(self) -> bool:
        """Return True if the study is there and defined: its maker was not killed in between."""
        if not self.path.is_file():
            return False
        require_optuna()
        with self._errors():
            names = [each.study_name for each in self._storage.get_all_studies()]
            return self.path.parent.name in names and bool(self._optuna.user_attrs.get("definition"))

    @cached_property
    def definition(self) -> Definition:
        with self._errors():
            kept = self._optuna.user_attrs["definition"]
        return Definition(**{**kept, "space": tuple(kept["space"])})

    def trials(self) -> list[Trial]:
        """Return all trials, by number."""
        with self._errors():
            return [trial_of(each) for each in self._visible()]

    def trial(self, number: int) -> Trial:
        with self._errors():
            return trial_of(self._frozen(number))

    def shown(self) -> list[Trial]:
        """Return the trials for people: a running one that nobody follows is marked so."""
        with self._errors():
            lost = {each.number for each in self._visible() if _is_lost(each)}
        return [replace(each, state="not followed") if each.number in lost else each for each in self.trials()]

    def standing(self) -> Literal["done", "running", "stopped", "failed"]:
        """Return ``running``, ``done`` (all was tried), ``stopped`` or, by a problem, ``failed``: these can go on."""
        with self._errors():
            attributes = self._optuna.user_attrs
        for key, works in attributes.items():
            if key.startswith("searcher:") and works and not _has_gone(key.removeprefix("searcher:")):
                return "running"
        if (ended := attributes.get("ended")) == "complete":
            return "done"
        return "stopped" if ended is None and attributes.get("problem") is None else "failed"

    # Changing it

    def ask(self, *, most: int | None = None, settings: Settings | None = None) -> Trial | None:
        """Return a trial that waits to run again, or a new one, of ``settings`` or chosen; None from ``most`` on."""
        self._join()
        with self._changing():
            frozen = self._visible()
            waiting = next((each for each in frozen if trial_of(each).state == "waiting"), None)
            if waiting is not None:
                self._set(waiting, owner=_this_owner())
                return trial_of(self._frozen(waiting.number))
            if most is not None and len(frozen) >= most:
                return None
            chosen = settings or self._choose(frozen)
            if chosen is None:
                return None
            return trial_of(self._frozen(self._add(chosen, owner=_this_owner())))

    def begin(self, number: int, run_id: str) -> None:
        """Record that the trial's run has been made."""
        with self._errors():
            self._set(self._frozen(number), run=run_id, begun_at=time.time())

    def report(self, number: int, step: int, value: float) -> bool:
        """Add a value of the objective; return whether the trial falls behind. The same step again replaces it."""
        import optuna

        with self._errors():
            identity = self._frozen(number)._trial_id
            self._storage.set_trial_intermediate_value(identity, step, value)
            if self.definition.prune == "none":
                return False
            return bool(optuna.trial.Trial(self._optuna, identity).should_prune())

    def tell(self, number: int, ending: Ending) -> None:
        """End a trial. Of two ends, the first counts."""
        from optuna.trial import TrialState

        states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        with self._changing():
            frozen = self._frozen(number)
            if frozen.state.is_finished():
                return
            self._set(frozen, ending=asdict(ending), ended_at=time.time(), owner=None)
            state = states.get(ending.state, TrialState.FAIL)
            # Optuna's own pages compare the time without an objective.
            value = ending.value if ending.value is not None else ending.measured.get("seconds", 0.0)
            self._optuna.tell(number, value if state is TrialState.COMPLETE else None, state)

    def again(self, number: int) -> None:
        """Let a trial whose run did not begin, or was lost, run again, for the next searcher that asks."""
        from optuna.trial import TrialState

        with self._changing():
            frozen = self._frozen(number)
            if frozen.state.is_finished():
                return
            if frozen.intermediate_values:  # a fresh one, as values that were reported stay
                self._set(frozen, ending=asdict(Ending("stopped")), owner=None)
                self._optuna.tell(number, state=TrialState.FAIL)
                self._add(frozen.user_attrs["settings"], replaces=number)
            else:
                self._set(frozen, owner=None, run=None, begun_at=None)

    def retry_stopped(self) -> int:
        """Let trials that were stopped run again; return how many."""
        with self._changing():
            stopped = [each for each in self._visible() if trial_of(each).state == "stopped"]
            for each in stopped:
                self._add(each.user_attrs["settings"], replaces=each.number)
        return len(stopped)

    def take_lost(self) -> list[Trial]:
        """Take over running trials whose searcher has gone, and return them."""
        self._join()
        with self._changing():
            lost = [each for each in self._visible() if _is_lost(each)]
            for each in lost:
                self._set(each, owner=_this_owner())
            return [trial_of(each) for each in lost]

    def go_on(self) -> None:
        """Forget that the study ended, and its problem: more of it is searched now."""
        for fact in ("ended", "problem"):
            self.put(fact, None)

    def leave(self) -> None:
        """Record that this searcher works on it no more."""
        self.put(f"searcher:{_this_owner()}", False)
        self._joined = False

    def put(self, key: str, value: Any) -> None:
        """Keep a fact of the whole study: why it has ended, or the problem that a searcher left it with."""
        with self._errors():
            if self._optuna.user_attrs.get(key) != value:
                self._optuna.set_user_attr(key, value)

    def get(self, key: str) -> Any:
        with self._errors():
            return self._optuna.user_attrs.get(key)

    # Within the journal

    def _join(self) -> None:
        if not self._joined:
            self.put(f"searcher:{_this_owner()}", True)
            self._joined = True

    def _choose(self, trials: Sequence[FrozenTrial]) -> Settings | None:
        """Return settings that no trial has: a script with a fixed seed would only repeat its number."""
        definition, space = self.definition, self.definition.parsed_space()
        tried = [each.user_attrs["settings"] for each in trials]
        left = (settings for settings in space.combinations() if settings not in tried) if space.is_finite else iter(())
        if definition.search == "grid" or (space.is_finite and len(trials) >= space.size):
            return next(left, None)
        for repeat in range(_MOST_REPEATS):
            seed = (definition.seed * 100_003 + len(trials)) * _MOST_REPEATS + repeat
            settings = sample(space, trials, sampler_of(definition.search, seed), self._optuna.direction)
            if settings not in tried:
                return settings
        return next(left, None)

    def _add(self, settings: Settings, **attributes: Any) -> int:
        from optuna.trial import TrialState, create_trial

        known = [one for one in self.definition.parsed_space().dimensions if one.name in settings]
        number = len(self._optuna.get_trials(deepcopy=False))
        params = {one.name: one.value(settings[one.name]) for one in known}
        ranges = {one.name: one.distribution() for one in known}
        kept = {"settings": dict(settings), **attributes}
        made = create_trial(state=TrialState.RUNNING, params=params, distributions=ranges, user_attrs=kept)
        self._optuna.add_trial(made)
        return number

    def _visible(self) -> list[FrozenTrial]:
        """Return the trials but those that another one replaces."""
        found = self._optuna.get_trials(deepcopy=False)
        replaced = {each.user_attrs.get("replaces") for each in found}
        return [each for each in found if each.number not in replaced and "settings" in each.user_attrs]

    def _frozen(self, number: int) -> FrozenTrial:
        return self._optuna.get_trials(deepcopy=False)[number]

    def _set(self, frozen: FrozenTrial, **attributes: Any) -> None:
        for key, value in attributes.items():
            self._storage.set_trial_user_attr(frozen._trial_id, key, value)

    @cached_property
    def _storage(self) -> JournalStorage:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        return JournalStorage(JournalFileBackend(str(self.path), lock_obj=_JournalLock(self.path)))  # type: ignore[arg-type]

    @cached_property
    def _optuna(self) -> optuna.Study:
        import optuna

        if not self.path.is_file():
            raise FileNotFoundError(2, "No such file or directory", str(self.path))
        study = optuna.load_study(study_name=self.path.parent.name, storage=self._storage)
        study.pruner = _pruner((study.user_attrs.get("definition") or {}).get("prune", "none"))
        return study

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the study: one process changes it at a time, and a killed one holds no lock."""
        with self._errors(), self.path.with_name(".changing").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _errors(self) -> Iterator[None]:
        name = self.path.parent.name
        try:
            yield
        except OSError as error:
            problem = f"The study {self.path} cannot be read or written: {error.strerror or error}"
            cause = "No disk space, or no permission"
            raise DiskError(problem, cause=cause, run=f"ls -l {self.path}; df -h {self.path.parent}") from error
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError) as error:
            message = f"The study {name} is damaged: {type(error).__name__}: {str(error)[:200]}"
            cause = f"Its file was overwritten: {self.path}; the runs of its trials are still there"
            run = f"seatrial runs ls   # and search again: seatrial sweep … --study {name}-2"
            raise DiskError(message, cause=cause, run=run) from error


def _pruner(name: str) -> BasePruner:
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name == "median":
        return MedianPruner(n_startup_trials=MEDIAN_OF, n_warmup_steps=1)
    if name == "asha":
        return SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=REDUCTION)
    return NopPruner()


class _JournalLock:
    """Held while a line is appended; the kernel takes it from a killed process, Optuna's own waits for 30 s then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        file = self._path.open("rb+")
        fcntl.flock(file, fcntl.LOCK_EX)
        _cut_torn_line(file)
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


def _cut_torn_line(file: IO[bytes]) -> None:
    """Cut off a line that a killed process did not finish: the next one would be appended to it."""
    if (end := file.seek(0, os.SEEK_END)) == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(max(0, end - (1 << 20)))
        tail = file.read()
        file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)


def _is_lost(frozen: FrozenTrial) -> bool:
    owner = frozen.user_attrs.get("owner")
    return not frozen.state.is_finished() and owner is not None and _has_gone(owner)


def _this_owner() -> str:
    """Return PID, start time and host: whose trials these are."""
    process = Process.this()
    return f"{process.pid}/{process.started_ticks}/{_this_host()}"


def _has_gone(owner: str) -> bool:
    """Return whether that searcher of this machine has ended; another machine's processes cannot be looked up."""
    pid, ticks, host = owner.split("/", 2)
    return host == _this_host() and not Process(pid=int(pid), started_ticks=int(ticks)).is_alive()


@cache
def _this_host() -> str:
    """Return this machine's name and ID: two machines may have the same name, or clones the same ID."""
    return f"{socket.gethostname()}/{file_bytes('/etc/machine-id').decode('ascii', 'replace').strip()}"
