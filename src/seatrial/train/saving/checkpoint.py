"""Checkpoints: written whole, in the background, read back exactly.

A checkpoint is one file, ``checkpoint-<global step>.pt``, of a plain dictionary of tensors, numbers and strings: it is
loaded with ``weights_only=True``, so a checkpoint from a stranger runs no code. ``best.pt`` is a second name of one.
Each holds the ID of its training (``training``), which a resumed one keeps, and ``.training`` in the folder holds that
of the last one there. A training replaces, deletes and resumes files with its ID; all others stay as they are.
Usable alone: ``writer.save(step, {"model": model.state_dict(), …})`` and ``load_newest(folder)``.
"""

from __future__ import annotations

import pickle
import re
import threading
import uuid
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seatrial.train.errors import CheckpointError, DiskFullError
from seatrial.train.memory import free_bytes
from seatrial.train.saving import arena
from seatrial.train.saving.atomic import link_file, remove_abandoned, write_file, write_text

BEST = "best.pt"
#: Holds the ID of the last training that wrote to a folder.
LAST = ".training"
_NAME = re.compile(r"checkpoint-(\d+)(?:-[0-9a-f]{8})?\.pt")
_ID = re.compile("[0-9a-f]{32}")
#: Keys of checkpoints that were written before they held an ID.
_KEYS = {"model", "optimizer", "epoch", "rng"}
#: States of at least this size are written by a process of their own, which takes 2 s of a core to start.
PROCESS_BYTES = 64 * 2**20
#: Share of the memory that is free where the training computes that one more waiting copy may take.
WAITING_SHARE = 0.25


class CheckpointWriter:
    """Saves checkpoints into one folder, the last ``keep`` of them and the best.

    ``save`` copies the tensors where they are (on the GPU: a device-side copy, milliseconds) and returns. A thread
    brings one copy at a time to the host while the training's kernels run. It also writes small states; a large one is
    written by another process, because a thread that writes a gigabyte takes Python from the training. The other copies
    wait where they were made; of more than ``keep`` the oldest, which would be deleted at once, is never written. Where
    the memory does not hold one more copy of a large state, training waits.

    Args:
        process_bytes: states of so many bytes and more are written by the process.
        training: ID of the training that is resumed; None: a new one.

    Attributes:
        others: checkpoints of other trainings, and files that are only named like one; they stay.
    """

    def __init__(
        self, folder: Path, keep: int = 3, process_bytes: int = PROCESS_BYTES, training: str | None = None
    ) -> None:
        self.folder, self.keep = folder, keep
        self.training = training or uuid.uuid4().hex
        self._own = [path for path in numbered(folder) if training_of(path) == self.training]
        self.others = [path for path in sorted(folder.glob("checkpoint-*.pt")) if path not in self._own]
        self._process_bytes = process_bytes
        self._host = arena.HostCopies()
        self._failure: BaseException | None = None
        self._waiting: deque[tuple[int, dict[str, Any], bool, torch.cuda.Event | None]] = deque()
        self._closed, self._changed = False, threading.Condition()
        self._held: arena.Arena | None = None
        self._process: arena.WriterProcess | None = None
        self._process_died = False
        for torn in folder.glob(".checkpoint-*.part"):  # of a training that was killed while it wrote
            if _NAME.fullmatch(torn.name[1:].rsplit(".", 2)[0]):
                remove_abandoned(torn)
        self._thread = threading.Thread(target=self._write_all, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def save(self, global_step: int, state: Mapping[str, Any], *, best: bool = False) -> None:
        """Copy ``state`` now, write it soon. Raises the error of an earlier write (DiskFullError)."""
        self._raise_failure()
        state = {**state, "training": self.training}
        sizes = arena.sizes_of(state).items() if arena.size_of(state) >= self._process_bytes else ()
        with self._changed:
            while self._waiting and any(size > free_bytes(device) * WAITING_SHARE for device, size in sizes):
                self._changed.wait()
        copied = snapshot(state)
        ready = None
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        with self._changed:
            self._waiting.append((global_step, copied, best, ready))
            self._drop()
            self._changed.notify_all()

    def _drop(self) -> None:
        """Drop the waiting ones that ``keep`` behind them would delete once written, unless one is the best so far."""
        bests = [best for _, _, best, _ in self._waiting]
        excess = range(len(bests) - self.keep)
        for number in reversed([number for number in excess if not bests[number] or any(bests[number + 1 :])]):
            del self._waiting[number]

    def close(self) -> None:
        """Wait until everything is on the disk. Raises the error of the last write."""
        if self._thread.is_alive():
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()
        self._raise_failure()

    def _write_all(self) -> None:
        with suppress(DiskFullError):  # as the first checkpoint will report
            write_text(self.folder / LAST, self.training)
        state: Any
        write: Any
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    break
                global_step, state, best, ready = self._waiting.popleft()
                self._changed.notify_all()
            if self._failure is None:  # after one the rest is left out, so that save() never blocks on a dead disk
                try:
                    with torch.cuda.device(ready.device) if ready else nullcontext():  # a thread begins on the first
                        write = self._to_host(state, ready)
                    del state  # the copy on the GPU
                    self._write(global_step, write, best)
                except Exception as error:  # noqa: BLE001  raised again by save() or close(), on the caller's thread
                    self._failure = error
            state = write = None  # nothing is held while it waits for the next
        if self._process is not None:
            self._process.close()
        if self._held is not None:
            self._held.close()

    def _to_host(self, state: dict[str, Any], ready: torch.cuda.Event | None) -> Callable[[Path], object]:
        """Copy a state to the host; return the function that writes it to a path."""
        size = arena.size_of(state)
        if size < self._process_bytes:  # through an arena the thread would take Python from the training for longer
            host = self._host.take(state, ready)
            return lambda path: write_file(path, lambda file: torch.save(host, file))
        if self._held is None or self._held.size_bytes != size:
            if self._held is not None:
                self._held.close()
            self._held = arena.Arena(size)
        return partial(self._write_from, self._held, self._host.fill(self._held, state, ready))

    def _write_from(self, held: arena.Arena, layout: Any, path: Path) -> None:
        """Write the state in an arena by the process, or here if the process died, of memory perhaps."""
        if not self._process_died:
            try:
                self._process = self._process or arena.WriterProcess()
                self._process.write(path, held, layout)
                return
            except ProcessLookupError:
                self._process_died = True
        state = arena.read(held.memory, layout)
        write_file(path, lambda file: torch.save(state, file))

    def _write(self, global_step: int, write: Callable[[Path], object], best: bool) -> None:
        path = self._free(self.folder / f"checkpoint-{global_step:010d}.pt")
        write(path)
        if best and not link_file(path, named := self._free(self.folder / BEST)):
            write(named)
        self._own = sorted({path, *self._own}, key=_number, reverse=True)
        for old in self._own[self.keep :]:
            if training_of(old) == self.training:  # nobody has put another file in its place
                old.unlink()
        del self._own[self.keep :]

    def _free(self, path: Path) -> Path:
        """Return a name for a file of this training: ``path``, or one with its ID if another's file has that."""
        if not path.exists() or training_of(path) == self.training:
            return path
        return path.with_stem(f"{path.stem}-{self.training[:8]}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of the last training that wrote to a folder, newest first."""
    last = last_training(folder)
    return [path for path in numbered(folder) if training_of(path) == last]


def numbered(folder: Path) -> list[Path]:
    """Return the files of a folder that are named as checkpoints are, of any training; highest step first."""
    return sorted((path for path in folder.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name)), key=_number)[::-1]


def _number(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-").removesuffix(".pt").partition("-")[0])


def last_training(folder: Path) -> str | None:
    """Return the ID of the last training that wrote to a folder; None where no file there is from a training."""
    try:
        return (folder / LAST).read_text(errors="replace").strip()
    except OSError:  # a folder with copied checkpoints
        return next((found for path in numbered(folder) if (found := training_of(path)) is not None), None)


def training_of(path: Path) -> str | None:
    """Return the ID of the training that wrote a file; "" for one without, None where it is not a checkpoint."""
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True) if _plain_archive(path) else None
    except Exception:  # noqa: BLE001  torch's reader raises what its bytes lead it to
        return None
    return written_by(state) if isinstance(state, dict) else None


def written_by(state: Mapping[str, Any]) -> str | None:
    """Return ``training_of`` for what was read of a file."""
    training = state.get("training")
    if isinstance(training, str) and _ID.fullmatch(training):
        return training
    return "" if state.keys() >= _KEYS and training is None else None


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint onto the CPU. Raises CheckpointError when it is truncated or no checkpoint."""
    try:
        if not _plain_archive(path):
            raise pickle.UnpicklingError
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises what its bytes lead it to: IndexError, struct.error
        raise CheckpointError(f"cannot read the checkpoint {path}: {_reason(error)}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a seatrial checkpoint: it contains a {type(state).__name__}")
    return state


def _plain_archive(path: Path) -> bool:
    """Return True for a zip file as torch.save writes it, of entries that are not packed and so not larger than it."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\3\4":
            return False
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    return stored and sum(entry.file_size for entry in entries) <= size


def _reason(error: Exception) -> str:
    """Return the reason in place of torch's advice, which is for other cases."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, pickle.UnpicklingError):
        return "it is not a seatrial checkpoint"
    return "the file is truncated or damaged"


def load_newest(place: Path, note: Callable[[str], object]) -> dict[str, Any]:
    """Return the newest readable checkpoint of a folder's last training, or the one file named.

    ``note`` gets a sentence for each file that is skipped. Raises CheckpointError if none can be read.
    """
    if place.is_file():
        return load(place)
    candidates, last = numbered(place), last_training(place)
    for path in candidates:
        try:
            state = load(path)
        except CheckpointError as error:
            note(f"{error.message}; falling back to the previous one")
            continue
        if last is not None and written_by(state) == last:
            return state
        note(f"{path} is not from the last training in this folder: it is kept, and not resumed")
    raise CheckpointError(
        f"no {'readable ' if candidates else ''}checkpoint in {place}",
        fix="--resume FILE (or resume=FILE) for one of the files skipped, or none to start from scratch"
        if candidates
        else "no --resume (or resume=): start from scratch",
    )


def load_model(model: torch.nn.Module, saved: Mapping[str, torch.Tensor], origin: str) -> None:
    """Load a state dict, or change nothing. Raises CheckpointError: missing, unknown or differently shaped tensors."""
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own if name not in saved]
    problems += [f"{name} is unknown" for name in saved if name not in own]
    shapes = ((name, tuple(saved[name].shape), tuple(tensor.shape)) for name, tensor in own.items() if name in saved)
    problems += [f"{name} is {there} there, {here} here" for name, there, here in shapes if there != here]
    if problems:
        shown = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        fix = "the recipe and options that saved it, or no --resume (or resume=)"
        raise CheckpointError(f"{origin} belongs to another model: {shown}", fix=fix)
    model.load_state_dict(dict(saved))


def snapshot(value: Any) -> Any:
    """Copy nested dictionaries, lists and tuples deeply; tensors are cloned on their device."""
    return arena.map_tensors(lambda tensor: tensor.detach().clone(), value)
