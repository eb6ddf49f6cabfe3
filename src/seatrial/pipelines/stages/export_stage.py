"""A stage ``target = "export:onnx"``: the model of the stage it needs in another format, an output like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.job.model import Job
from seatrial.pipelines.stages.model_among import model_among
from seatrial.runs.export_job import FOLDER, SUFFIXES, Asked, beside, export_job
from seatrial.runs.trained_model import EXPORT, WEIGHTS, TrainedModel, is_model

PREFIX = "export:"


@dataclass(frozen=True)
class Export:
    """What such a stage does, as far as the file tells.

    Attributes:
        to: the format. out: the file it writes. options: of the program.
        recipe: that trained the model, or "". file: of the model, below the project, for others.
        among: outputs of the needed stage, one of which has the model, where no file is named. name: of this stage.
        models: the recipe's models folder; None for ./models.
    """

    to: str
    out: str
    options: tuple[str, ...]
    recipe: str = ""
    file: str = ""
    models: Path | None = None
    among: tuple[str, ...] = ()
    name: str = ""

    def job(self, job: Job, *, planning: bool = False) -> Job:
        """Its run: what holds for the stage, with the export program as its target.

        Raises DataError, UsageError: the needed stage wrote no model, or several; unless ``planning``.
        """
        if self.recipe:
            model = TrainedModel("recipe", self.recipe, self.recipe, self.models or job.project / "models")
        elif self.among:
            model = model_among(f"stages.{self.name}.needs", job.project, self.among, EXPORT, planning=planning)
        else:
            path = job.project / self.file
            model = TrainedModel("file", path.name, PurePosixPath(path.name).stem, path.parent, (path,))
        return export_job(job, model, Asked(self.to, self.out, self.options))


def is_export(table: Mapping[str, Any]) -> bool:
    """Whether a stage's table asks for it."""
    return str(table.get("target", "")).startswith(PREFIX)


def read_export(
    name: str, table: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> tuple[Export, tuple[str, ...]] | str:
    """(what it does, its outputs with the card and the examples), or what is wrong in one sentence."""
    to = str(table["target"]).removeprefix(PREFIX)
    if to not in SUFFIXES:
        return f"stages.{name}.target: no format {to!r}; expected {', '.join(PREFIX + known for known in SUFFIXES)}"
    args, needs = tuple(table.get("args", ())), tuple(table.get("needs", ()))
    named = [value for flag, value in pairwise(args) if flag == "--model"]
    if named:
        place = args.index("--model")
        args = (*args[:place], *args[place + 2 :])
    if len(needs) != 1 and not named:
        return f'stages.{name}.needs: one stage whose model is exported, needs = ["train"]; there are {len(needs)}'
    trained = tables.get(needs[0], {}) if needs else {}
    recipe = "" if named else str(trained.get("target", ""))
    models: Path | None = None
    file, among = "", ()
    if recipe in WEIGHTS:
        model_name = recipe
        models = trained["models"].source if trained.get("models") is not None else None
    else:
        recipe = ""
        found = named or [path for path in trained.get("outputs", ()) if is_model(path, EXPORT)]
        folders = tuple(path for path in trained.get("outputs", ()) if not PurePosixPath(path).suffix)
        among = () if found else folders
        if not found and not among:
            return (
                f"stages.{needs[0]}.outputs: no model and no folder is among them for {name}: "
                f'name the file or folder that it saves, outputs = ["models"]'
            )
        if len(found) > 1:
            return (
                f'stages.{name}.args: name the file of the model, args = ["--model", "models/best.pt2"]; '
                f"{needs[0]} declares {len(found)} models"
            )
        file = found[0] if found else ""
        model_name = PurePosixPath(file).stem or needs[0]
    out, outputs = _outputs(tuple(table.get("outputs", ())), model_name, SUFFIXES[to])
    return Export(to, out, args, recipe, file, models, among, name), outputs


def _outputs(declared: tuple[str, ...], model_name: str, suffix: str) -> tuple[str, tuple[str, ...]]:
    """(the file to write, all outputs): a declared file of this format, in a declared folder, or in ./exports."""
    files = [path for path in declared if path.endswith(suffix)]
    folders = [path for path in declared if not PurePosixPath(path).suffix]
    out = files[0] if files else f"{folders[0] if folders else FOLDER}/{model_name}{suffix}"
    written = beside(out)
    covered = [path for path in written if any(PurePosixPath(path).is_relative_to(each) for each in declared)]
    return out, (*declared, *(path for path in written if path not in covered))
