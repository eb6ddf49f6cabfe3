"""A Keras model's files: checkpoints ``epoch-00003.keras`` and the finished model, each whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from seatrial.train.errors import CheckpointError
from seatrial.train.saving.atomic import write_file


def save_model(model: Any, path: Path) -> None:
    """Network, weights and the optimizer's state. Raises DiskFullError."""
    with tempfile.TemporaryDirectory(prefix="seatrial-keras-") as folder:  # Keras writes to names alone
        aside = Path(folder) / path.name
        model.save(aside)
        content = aside.read_bytes()
    write_file(path, lambda file: file.write(content))


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("epoch-*.keras"), reverse=True)


def save_checkpoint(model: Any, folder: Path, epoch: int, keep: int) -> None:
    """After this epoch; only the newest ``keep`` stay. Raises DiskFullError."""
    save_model(model, folder / f"epoch-{epoch:05d}.keras")
    for old in checkpoints(folder)[keep:]:
        old.unlink(missing_ok=True)


def resume(keras: Any, model: Any, place: Path) -> int:
    """Put weights and optimizer of the newest checkpoint that can be read, or of this file, into a compiled model.

    The learning rate stays the model's own. Returns how many epochs are done. Raises CheckpointError.
    """
    found = checkpoints(place) if place.is_dir() else [place] if place.is_file() else []
    for path in found:
        try:
            saved = keras.saving.load_model(path)  # safe_mode: it runs no code of the file's
            done = int(path.stem.removeprefix("epoch-"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"skipped {path}: {type(error).__name__}", flush=True)
            continue
        _copy(saved, model, path)
        return done
    raise CheckpointError(
        f"there is no checkpoint of Keras in {place} that can be read (epoch-00001.keras …)",
        fix="no --resume (or resume=): start from scratch",
    )


def _copy(saved: Any, model: Any, path: Path) -> None:
    """In the order in which they were made: names are counted through within a process."""
    model.optimizer.build(model.trainable_variables)
    theirs, ours = _state(saved), _state(model)
    if [tuple(each.shape) for each in theirs] != [tuple(each.shape) for each in ours]:
        raise CheckpointError(
            f"{path} is a checkpoint of another model or optimizer", fix="no --resume (or resume=): start from scratch"
        )
    for their, our in zip(theirs, ours, strict=True):
        our.assign(their)


def _state(model: Any) -> list[Any]:
    """Weights and the optimizer's variables, without the learning rate."""
    kept = [each for each in model.optimizer.variables if not each.path.endswith("learning_rate")]
    return [*model.weights, *kept]
