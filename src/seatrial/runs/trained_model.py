"""Which model ``seatrial export`` means: a recipe's, a file, or what a run has saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from seatrial.errors import DataError, RunNotFoundError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.receipt.write import load
from seatrial.runs.resume import run_to_resume
from seatrial.runs.store import Run, RunStore
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed, from_here

#: What a model's file ends in that can be exported from.
SUFFIXES = (".pt2", ".torchscript", ".ts", ".pt", ".pth", ".safetensors")

#: Of these several may be saved for one model; the first suffix that one file alone has is meant.
_PREFERRED = (".pt2", ".torchscript", ".safetensors")

#: Recipe → its weights below the models folder. Source: WEIGHTS in recipes/saved.py; a test compares.
WEIGHTS = {
    name: {"mnist-deep": "trained-model.safetensors", "spam": "spam/model.safetensors"}.get(name, f"{name}.safetensors")
    for name, recipe in RECIPES.items()
    if recipe.trains
}
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "env"}
_MOST_FILES = 200_000
#: File times are of a coarse clock, and a receipt is written a moment after its target has ended.
_SLACK_S = 2.0


@dataclass(frozen=True)
class TrainedModel:
    """A model to export.

    Attributes:
        spec: as the program takes it: a recipe's name, or a path below ``folder``.
        folder: the models folder. name: of the exported file.
        of_run: the run that made it. warning: what the user should know.
    """

    spec: str
    folder: Path
    name: str
    of_run: str | None = None
    warning: str | None = None

    @property
    def is_weights_alone(self) -> bool:
        """By its name: a state dict without its network. A recipe's own file has examples beside, which name it."""
        path = PurePosixPath(self.spec)
        beside = self.folder / f"{path.name.removesuffix(path.suffix)}.examples.safetensors"
        return path.suffix.lower() in (".pth", ".safetensors") and not beside.is_file()


def find_model(reference: str, models: Path, store: RunStore) -> TrainedModel:
    """What the word means: a file, a recipe that was trained, or a run.

    Raises:
        DataError: the recipe was not trained, the file is not there.
        UsageError: it is none of these, or a run that failed, made no model, or several.
    """
    path = Path(reference)
    if path.suffix.lower() in (*SUFFIXES, ".onnx", ".pkl", ".pickle", ".ckpt") or path.is_file():
        return of_file(path)
    if reference in WEIGHTS:
        return of_recipe(reference, models)
    try:
        run = run_to_resume(store, reference)
    except RunNotFoundError as error:
        raise UsageError(
            f'There is no run, recipe or file "{reference}" in {from_here(store.project)}',
            cause=f"recipes: {', '.join(WEIGHTS)}",
            run=error.run,
        ) from None
    return of_run(run)


def of_file(path: Path) -> TrainedModel:
    """A model's file. Raises DataError, UsageError."""
    if not path.is_file():
        raise DataError(f"There is no file {from_here(path)}", run=f"ls {as_typed(path.absolute().parent)}")
    if path.suffix.lower() in (".pkl", ".pickle", ".joblib"):
        raise UsageError(
            f"{from_here(path)} is a pickle: loading one can run any code of whoever wrote it, so it is refused",
            cause="safetensors, .pt2, TorchScript, and a state dict of tensors alone can be loaded",
            run="python -c 'torch.save(model.state_dict(), \"model.pth\")'   # in the training script",
        )
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{from_here(path)} is no model that can be exported: expected {', '.join(SUFFIXES)}",
            run="seatrial export last --to onnx",
        )
    path = path.absolute()
    if path.parts[-2:] == ("spam", "model.safetensors"):  # its network is described by the files beside it
        return TrainedModel("spam", path.parent.parent, "spam")
    return TrainedModel(path.name, path.parent, path.name.partition(".")[0] or "model")


def of_recipe(name: str, models: Path) -> TrainedModel:
    """Raises DataError: it was not trained into this folder."""
    path = models / WEIGHTS[name]
    if not path.is_file():
        older = path.with_suffix(".pth")
        cause = f"{older.name} there is a pickle of an older version, which is not read" if older.is_file() else None
        raise DataError(
            f"There is no trained {name} model in {from_here(models)}", cause=cause, run=f"seatrial run {name}"
        )
    return TrainedModel(name, models, name)


def of_run(run: Run) -> TrainedModel:
    """The model that a run has saved. Raises UsageError, DataError."""
    plan, shown = run.plan(), f"Run {run.id}"
    if plan.cluster is not None:
        raise UsageError(
            f"{shown} saved its model on the cluster's volume",
            run=f"seatrial runs cp {run.id}:FILE ./models; seatrial export ./models/FILE --to onnx",
        )
    if not run.ended:
        raise UsageError(f"{shown} has not ended", run=f"seatrial runs logs -f {run.id}")
    receipt = load(run.folder)
    if receipt.exit_code not in (0, 4):  # 4: it ended well, and a criterion was unmet
        raise UsageError(
            f"{shown} failed, so it has no trained model: {receipt.exit_cause.words}",
            run=f"seatrial runs show {run.id}",
        )
    target = plan.job.target
    if target.kind == "recipe":
        if target.value not in WEIGHTS:
            raise UsageError(f"{shown}, {target.value}, trains no model", run="seatrial run digits")
        folder = plan.job.models.source if plan.job.models else plan.job.project / "models"
        found = of_recipe(target.value, folder)
        written = (folder / WEIGHTS[target.value]).stat().st_mtime
        since = written > receipt.header.judged_at + _SLACK_S
        warning = (
            f"a later training has replaced what run {run.id} saved: the newer model is exported" if since else None
        )
        return replace(found, of_run=run.id, warning=warning)
    folders = [folder for folder in (plan.job.models.source if plan.job.models else None, plan.job.project) if folder]
    return replace(of_file(_only_one(_saved_by(run, folders), run)), of_run=run.id)


def _saved_by(run: Run, folders: Sequence[Path]) -> list[Path]:
    """Files of models written while the run went on; nothing that a link leads to."""
    header = load(run.folder).header
    started = header.started_at or header.judged_at
    found: dict[Path, None] = {}
    for folder in folders:
        for entry in nofollow.files_below(folder, most_entries=_MOST_FILES, skip=_SKIPPED):
            if not entry.name.lower().endswith(SUFFIXES) or entry.name.endswith(".examples.safetensors"):
                continue
            modified = entry.stat(follow_symlinks=False).st_mtime
            if started - _SLACK_S <= modified <= header.judged_at + _SLACK_S:
                found[Path(entry.path)] = None
    return sorted(found)


def _only_one(saved: Sequence[Path], run: Run) -> Path:
    """The one file; of several the one of the format that tells most of the model."""
    for few in (saved, *([path for path in saved if path.suffix.lower() == suffix] for suffix in _PREFERRED)):
        if len(few) == 1:
            return few[0]
    if not saved:
        raise UsageError(
            f"Run {run.id} saved no model that is still there: looked for {', '.join(SUFFIXES)}",
            run=f"seatrial runs show {run.id}",
        )
    names = ", ".join(from_here(path) for path in saved[:8])
    raise UsageError(
        f"Run {run.id} saved {len(saved)} models: {names}", run=f"seatrial export {as_typed(saved[0])} --to onnx"
    )
