"""The model among the outputs of a stage, for the stages that export or serve it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from seatrial.errors import DataError, UsageError
from seatrial.runs.trained_model import TrainedModel, Verb, is_model, of_file, the_one
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed, from_here

#: Files of a stage's outputs that are looked at.
_MOST_FILES = 20_000


def model_among(field: str, project: Path, outputs: Sequence[str], verb: Verb, *, planning: bool) -> TrainedModel:
    """The model in these outputs.

    Args:
        field: of the file that names the stage: ``stages.serve.serve``.
        planning: it need not be there yet; what it will be is known when it has been written.

    Raises DataError, UsageError: there is none, or there are several.
    """
    files = [path for output in outputs for path in _files(project / output, verb)]
    if (one := the_one(files, verb)) is not None:
        return of_file(one, verb)
    if planning:
        folder = next((output for output in outputs if not PurePosixPath(output).suffix), "models")
        named = project / next((output for output in outputs if is_model(output, verb)), f"{folder}/MODEL.pt2")
        return TrainedModel("file", named.name, named.stem, named.parent)
    if not files:
        raise DataError(
            f"{field}: there is no model among the outputs {', '.join(outputs) or '(none)'}",
            cause=f"looked for {', '.join(verb.suffixes)}",
            run=f"ls {as_typed(project)}",
        )
    raise UsageError(
        f"{field}: {len(files)} models are among the outputs: {', '.join(map(from_here, files[:8]))}",
        run=f"name one of them in a stage's outputs of its own, or: {verb.of(files[0])}",
    )


def _files(path: Path, verb: Verb) -> Iterator[Path]:
    """Files of models at or below an output."""
    if path.is_file():
        yield from [path] if is_model(path.name, verb) else []
        return
    for entry in nofollow.files_below(path, most_entries=_MOST_FILES):
        if is_model(entry.name, verb):
            yield Path(entry.path)
