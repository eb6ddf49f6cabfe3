"""The study: one SQLite file with all that is known of a search. Any number of processes, of any machines that share
the file's disk, may work on one.

Four verbs change a trial: ``ask`` makes it, ``begin`` gives it a run, ``report`` adds a value, ``tell`` ends it. Each
is one transaction, so that whoever is killed leaves whole trials behind.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import DiskError, SeatrialError, UsageError
from seatrial.search.objective import Objective, parse_objective
from seatrial.search.owner import SEEN_S, Owner, has_gone, is_anyone_there, write_gone, write_seen
from seatrial.search.space import Settings, Space, parse_space
from seatrial.search.trial import ENDED, Ending, Report, State, Trial

FILE = "study.sqlite"

#: Of the tables below; another number is another version's file.
_VERSION = 1

#: Another process holds the file for as long as one question to Optuna takes, some milliseconds.
_WAIT_S = 60.0

_TABLES = """
create table study (key text primary key, value text not null);
create table trials (
    number integer primary key, settings text not null, state text not null, owner text, run_id text,
    begun_at real, ended_at real, notes text not null default '{}', ending text
);
create table reports (trial integer not null, step integer not null, value real not null, primary key (trial, step));
"""

Ask = Callable[[Sequence[Trial]], "Settings | None"]

#: ``stopped``: it can go on; ``failed``: so it can, and a problem ended it.
Standing = Literal["done", "running", "stopped", "failed"]


@dataclass(frozen=True)
class Definition:
    """What a study searches; it does not change.

    Attributes:
        title: the target and its arguments, as typed.
        space, objective: as typed.
        search: name of the engine. prune: name of the pruner.
        trials: how many at most; None: as many as the engine has.
        job: the Job's JSON; --resume runs it again.
    """

    name: str
    title: str
    space: tuple[str, ...]
    search: str
    objective: str | None = None
    pattern: str | None = None
    prune: str = "none"
    trials: int | None = None
    seed: int = 0
    job: str = ""

    def parsed_space(self) -> Space:
        return parse_space(self.space)

    def parsed_objective(self) -> Objective | None:
        return parse_objective(self.objective, self.pattern) if self.objective else None


class Study:
    """A study's file.

    Args:
        path: study.sqlite, which must be there: ``create`` makes one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen_s = float("-inf")

    @classmethod
    def create(cls, path: Path, definition: Definition) -> Study:
        """Raises UsageError when there is one of that name, DiskError."""
        study = cls(path)
        with study._changing(new=True) as file:
            if file.execute("select 1 from sqlite_master where name = 'study'").fetchone():
                raise UsageError(
                    f"There is a study {definition.name} already", run=f"seatrial sweep --resume {definition.name}"
                )
            for statement in _TABLES.split(";"):
                file.execute(statement)
            file.execute(f"pragma user_version = {_VERSION}")
            file.execute("insert into study values ('definition', ?)", [json.dumps(asdict(definition))])
        return study

    @property
    def is_made(self) -> bool:
        """Its tables are there: whoever made the file was not killed in between."""
        if not self.path.is_file():
            return False
        is_empty = self.path.stat().st_size == 0
        with self._open(new=True) as file:
            version = file.execute("pragma user_version").fetchone()[0]
            if not version and not is_empty:
                raise sqlite3.DatabaseError("file is not a database")  # SQLite takes one of a few bytes for a new one
            return bool(version)

    @property
    def definition(self) -> Definition:
        with self._reading() as file:
            (text,) = file.execute("select value from study where key = 'definition'").fetchone()
        told = json.loads(text)
        return Definition(**{**told, "space": tuple(told["space"])})

    def trials(self) -> list[Trial]:
        """All of them, by number."""
        with self._reading() as file:
            return _trials(file)

    def shown(self) -> list[Trial]:
        """All of them as people are to see them: of those that run, which nobody follows."""
        with self._reading() as file:
            lost = {number for number, _ in _lost(file)}
            return [replace(one, state="not followed") if one.number in lost else one for one in _trials(file)]

    def standing(self) -> Standing:
        """Whether it is searched now; else what its search came to."""
        with self._reading() as file:
            if is_anyone_there(file):
                return "running"
        ended = self.get("ended")
        if ended == "complete":
            return "done"
        return "stopped" if ended is None and self.get("problem") is None else "failed"

    # Verbs

    def ask(self, choose: Ask, *, most: int | None = None) -> Trial | None:
        """A new trial of this process, or one that waits to be run again; None: there are no more.

        Args:
            choose: gets all trials so far, and says the settings of the next.
            most: trials that the study may have at most.
        """
        with self._changing() as file:
            write_seen(file)
            _free_silent(file)
            trials = _trials(file)
            waiting = next((trial for trial in trials if trial.state == "waiting"), None)
            owner = Owner.this_process().model_dump_json()
            if waiting is not None:
                number = waiting.number
                file.execute("update trials set state = 'running', owner = ? where number = ?", [owner, number])
            else:
                if most is not None and len(trials) >= most:
                    return None
                settings = choose(trials)
                if settings is None:
                    return None
                number = len(trials)
                row = [number, json.dumps(settings), "running", owner]
                file.execute("insert into trials (number, settings, state, owner) values (?, ?, ?, ?)", row)
            return next(trial for trial in _trials(file) if trial.number == number)

    def begin(self, number: int, run_id: str) -> None:
        """Its run has been made."""
        with self._changing() as file:
            file.execute("update trials set run_id = ?, begun_at = ? where number = ?", [run_id, time.time(), number])

    def report(self, number: int, step: int, value: float) -> None:
        """A value of the objective; the same step again, as after a restart, replaces it."""
        with self._changing() as file:
            file.execute("insert or replace into reports values (?, ?, ?)", [number, step, value])

    def note(self, number: int, notes: Mapping[str, Any]) -> None:
        """What the pruner wants to know later."""
        with self._changing() as file:
            file.execute("update trials set notes = ? where number = ?", [json.dumps(dict(notes)), number])

    def tell(self, number: int, ending: Ending) -> None:
        """It has ended. Of two that tell, the first counts."""
        with self._changing() as file:
            file.execute(
                "update trials set state = ?, ended_at = ?, ending = ?, owner = null "
                "where number = ? and state = 'running'",
                [ending.state, time.time(), json.dumps(asdict(ending)), number],
            )

    def again(self, number: int) -> None:
        """Its run never began: it waits for whoever asks next."""
        with self._changing() as file:
            _again(file, number)

    def retry_stopped(self) -> int:
        """Trials that were stopped wait to be run again; how many."""
        with self._changing() as file:
            stopped = [number for (number,) in file.execute("select number from trials where state = 'stopped'")]
            for number in stopped:
                file.execute("delete from reports where trial = ?", [number])
                file.execute(
                    "update trials set state = 'waiting', run_id = null, begun_at = null, ended_at = null, "
                    "ending = null, notes = '{}' where number = ?",
                    [number],
                )
        return len(stopped)

    def take_lost(self) -> list[Trial]:
        """Running trials of this machine whose searcher has gone; they are this process's from now on."""
        me = Owner.this_process().model_dump_json()
        with self._changing() as file:
            lost = [number for number, is_here in _lost(file) if is_here]
            file.executemany("update trials set owner = ? where number = ?", [(me, number) for number in lost])
            return [trial for trial in _trials(file) if trial.number in lost]

    def seen(self) -> None:
        """This searcher is there. May be called as often as one likes."""
        if time.monotonic() - self._seen_s >= SEEN_S:
            self._seen_s = time.monotonic()
            with self._changing() as file:
                write_seen(file)

    def go_on(self) -> None:
        """It has not ended: more of it is searched now."""
        for fact in ("ended", "problem"):
            self.put(fact, None)

    def leave(self) -> None:
        """This searcher works on it no more."""
        with self._changing() as file:
            write_gone(file)

    # Facts of the whole study: why it has ended, or the problem that a searcher left it with

    def put(self, key: str, value: str | None) -> None:
        with self._changing() as file:
            file.execute("delete from study where key = ?", [key])
            if value is not None:
                file.execute("insert into study values (?, ?)", [key, value])

    def get(self, key: str) -> str | None:
        with self._reading() as file:
            row = file.execute("select value from study where key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    @contextmanager
    def _changing(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        with self._open(new=new) as file:
            file.execute("begin immediate")
            try:
                yield file
            except BaseException:
                file.rollback()
                raise
            file.commit()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._open() as file:
            file.execute("begin")
            yield file

    @contextmanager
    def _open(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        mode = "rwc" if new else "rw"
        try:
            with contextlib.closing(
                sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_WAIT_S, isolation_level=None
                )
            ) as file:
                if not new:
                    self._check_version(file)
                yield file
        except sqlite3.DatabaseError as error:
            if "malformed" in str(error) or "not a database" in str(error):
                raise DiskError(
                    f"The study {self.path.parent.name} is damaged: {error}",
                    cause=f"Its file was cut or overwritten: {self.path}; the runs of its trials are still there",
                    run=f"seatrial runs ls   # and search again: seatrial sweep … --study {self.path.parent.name}-2",
                ) from error
            raise DiskError(
                f"The study {self.path} cannot be read or written: {error}",
                cause="No disk space, no permission, or a damaged file",
                run=f"ls -l {self.path}; df -h {self.path.parent}",
            ) from error

    def _check_version(self, file: sqlite3.Connection) -> None:
        (version,) = file.execute("pragma user_version").fetchone()
        if version != _VERSION:
            raise SeatrialError(
                f"The study {self.path.parent.name} is of another version of seatrial",
                run=f"seatrial sweep … --study {self.path.parent.name}-2",
            )


def _trials(file: sqlite3.Connection) -> list[Trial]:
    reports: dict[int, list[Report]] = {}
    for number, step, value in file.execute("select trial, step, value from reports order by trial, step"):
        reports.setdefault(number, []).append(Report(step, value))
    columns = "number, settings, state, run_id, begun_at, ended_at, notes, ending"
    return [
        Trial(
            number=number,
            settings=json.loads(settings),
            state=_state(state),
            run_id=run_id,
            begun_at=begun_at,
            ended_at=ended_at,
            reports=tuple(reports.get(number, ())),
            notes=json.loads(notes),
            ending=None if ending is None else Ending(**json.loads(ending)),
        )
        for number, settings, state, run_id, begun_at, ended_at, notes, ending in file.execute(
            f"select {columns} from trials order by number"
        )
    ]


def _state(text: str) -> State:
    known: tuple[State, ...] = ("waiting", "running", *ENDED)
    return next(state for state in known if state == text)


def _lost(file: sqlite3.Connection) -> list[tuple[int, bool]]:
    """(number, whether it ran on this machine) of running trials whose searcher has gone."""
    owners = file.execute("select number, owner from trials where state = 'running'").fetchall()
    return [(number, owner is None or Owner.parse(owner).is_here) for number, owner in owners if has_gone(file, owner)]


def _free_silent(file: sqlite3.Connection) -> None:
    """Trials of another machine that is silent begin again: their runs cannot be followed from here."""
    for number, is_here in _lost(file):
        if not is_here:
            _again(file, number)


def _again(file: sqlite3.Connection, number: int) -> None:
    file.execute(
        "update trials set state = 'waiting', run_id = null, begun_at = null, owner = null "
        "where number = ? and state = 'running'",
        [number],
    )
    file.execute("delete from reports where trial = ?", [number])
