"""What is known of each stage between two ``seatrial up``: its last good result, and the run that is to be the next.

    state folder/projects/<key>/stages/<name>/last.json      the result that holds
                                             next.json       the run under way; with outputs: they are being placed
                               stages/digests.json           content digests
                               stages/.lock                  held while a seatrial up runs stages of the project

``next.json`` is written before its run starts, so a run whose command line was killed is found again. It gets the
digests of the outputs before the first of them is put in place, so a placing that was cut short is gone on with.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import NameInUseError, UntrustedPathError
from seatrial.pipelines.stages.digests import Digest
from seatrial.runs.store import RunStore
from seatrial.system import nofollow
from seatrial.system.files import make_folder, write_atomically

_MOST_BYTES = 32 << 20


@dataclass(frozen=True)
class Result:
    """A run of a stage, under way or whole.

    Attributes:
        fingerprint: what it follows from (fingerprint.py).
        read, wrote: digests; ``wrote`` is None while it has not ended well.
        seconds: of the target. gpus: how many it had.
    """

    run: str
    group: str
    fingerprint: dict[str, Any]
    read: tuple[Digest, ...] = ()
    wrote: tuple[Digest, ...] | None = None
    seconds: float | None = None
    gpus: int = 0


class StageRecords:
    """The records of one project's stages."""

    def __init__(self, store: RunStore) -> None:
        self.root = store.record / "stages"
        make_folder(self.root)

    @property
    def digests(self) -> Path:
        return self.root / "digests.json"

    def last(self, stage: str) -> Result | None:
        """The result that holds, as far as its outputs are still what they were."""
        return _read(self.root / stage / "last.json")

    def next(self, stage: str) -> Result | None:
        """The run that was started and is not yet the result."""
        return _read(self.root / stage / "next.json")

    def begin(self, stage: str, result: Result) -> None:
        """This run is to be the stage's next result."""
        make_folder(self.root / stage)
        _write(self.root / stage / "next.json", result)

    def ended_well(self, stage: str, result: Result) -> None:
        """Its outputs are complete, and are about to be put in place."""
        assert result.wrote is not None
        _write(self.root / stage / "next.json", result)

    def placed(self, stage: str, result: Result) -> None:
        """They are in place: this is the result from now on."""
        _write(self.root / stage / "last.json", result)
        self.drop(stage)

    def drop_run(self, stage: str, run: str) -> None:
        """As ``drop``, unless another run has been begun meanwhile."""
        begun = self.next(stage)
        if begun is not None and begun.run == run:
            self.drop(stage)

    def drop(self, stage: str) -> None:
        """The run will not be the next result."""
        (self.root / stage / "next.json").unlink(missing_ok=True)

    @contextmanager
    def only_one(self) -> Iterator[None]:
        """Held by one ``seatrial up`` at a time. Raises NameInUseError: another one runs stages of this project."""
        with (self.root / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise NameInUseError(
                    f"Another seatrial up (process {file.read(20).strip() or '?'}) runs this project's stages",
                    run="seatrial runs ls   # shows its group; seatrial runs stop --all ends it",
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def _write(path: Path, result: Result) -> None:
    write_atomically(path, json.dumps(asdict(result)).encode("utf-8", "surrogateescape"), mode=0o600)


def _read(path: Path) -> Result | None:
    """None for a file that is none, or of another version: the stage then runs again."""
    try:
        loaded = json.loads(nofollow.read_regular(path, most_bytes=_MOST_BYTES))
        result = Result(**loaded)
        wrote = None if result.wrote is None else tuple(Digest(**each) for each in loaded["wrote"])
        return replace(result, read=tuple(Digest(**each) for each in loaded["read"]), wrote=wrote)
    except (FileNotFoundError, UntrustedPathError, ValueError, TypeError, KeyError, RecursionError):
        return None
