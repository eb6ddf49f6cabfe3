"""sweep: one run for each combination of settings, some at a time, and a table of what came out."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import SeatrialError, UsageError
from seatrial.job.model import Job
from seatrial.job.reading.modules import find_module
from seatrial.planning.recipe_env import FLAGS, PRECISIONS
from seatrial.receipt.model import Receipt
from seatrial.runs import launch
from seatrial.runs.finalise import finalise
from seatrial.runs.following.watch import follow

Say = Callable[[str], None]

#: More is a search, which has tools of its own.
MAX_RUNS = 200


@dataclass(frozen=True)
class Setting:
    """``--set NAME=V1,V2``."""

    name: str
    values: tuple[str, ...]


@dataclass
class Result:
    """One run of a sweep.

    Attributes:
        settings: name → value.
        outcome: the exit cause in words, or why it did not start.
        metrics: last values that the target reported; images_per_s and energy are measured.
    """

    settings: dict[str, str]
    run_id: str | None = None
    exit_code: int | None = None
    outcome: str = ""
    seconds: float | None = None
    images_per_s: float | None = None
    energy_j: float | None = None
    utilization_pct: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_setting(text: str) -> Setting:
    """Raises UsageError for what is no NAME=V1,V2."""
    name, equals, values = text.partition("=")
    listed = tuple(value.strip() for value in values.split(","))
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name) or "" in listed:
        raise UsageError(f"--set {text!r} is not NAME=VALUE,VALUE…", run="seatrial sweep … --set batch_size=64,128")
    if len(set(listed)) < len(listed):
        raise UsageError(f"--set {text!r} names a value twice", run="seatrial sweep … --set batch_size=64,128")
    return Setting(name, listed)


def variants(job: Job, settings: Sequence[Setting]) -> list[tuple[dict[str, str], Job]]:
    """(settings, job) of every combination, in the order they were given.

    Raises UsageError when the target shows no way to set one, or there are too many.
    """
    ways = {setting.name: way_in(job, setting.name) for setting in settings}
    combinations = list(itertools.product(*(setting.values for setting in settings)))
    if len(combinations) > MAX_RUNS:
        raise UsageError(
            f"{len(combinations)} runs are too many for a sweep: at most {MAX_RUNS}", run="seatrial sweep …"
        )
    made = []
    for values in combinations:
        chosen = dict(zip((setting.name for setting in settings), values, strict=True))
        made.append((chosen, _varied(job, chosen, ways)))
    return made


def way_in(job: Job, name: str) -> str:
    """How the target takes a setting: ``--flag``, or the name of a variable.

    Raises UsageError when its source shows neither.
    """
    variable = name.upper().replace("-", "_")
    if job.target.kind == "recipe":
        return FLAGS.get(variable, "--" + name.replace("_", "-"))
    source = _source(job)
    if source is None:
        return variable
    for flag in ("--" + name.replace("_", "-"), "--" + name.replace("-", "_")):
        if re.search(rf"""["']{re.escape(flag)}["'=]""", source):
            return flag
    if re.search(rf"\b{re.escape(variable)}\b", source):
        return variable
    raise UsageError(
        f"{job.target.value} has no way to set {name}",
        cause=f"neither --{name.replace('_', '-')} nor the variable {variable} is in its source",
        run=f'parser.add_argument("--{name.replace("_", "-")}") in {job.target.value}, or os.environ["{variable}"]',
    )


def _source(job: Job) -> str | None:
    """The target's text; None for an image, or a module that is not the project's."""
    path = job.project / job.target.value if job.target.kind == "script" else None
    if job.target.kind == "module":
        path = find_module(job.target.value, [job.project, job.project / "src"], main=True)
    return path.read_text(encoding="utf-8", errors="replace") if path is not None else None


def _varied(job: Job, chosen: Mapping[str, str], ways: Mapping[str, str]) -> Job:
    args, env = list(job.target.args), dict(job.env)
    for name, value in chosen.items():
        if ways[name].startswith("--"):
            if ways[name] == "--precision":
                value = PRECISIONS.get(value.lower(), value)
            args += [ways[name], value]
        else:
            env[ways[name]] = value
    suffix = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(f"{name}-{value}" for name, value in chosen.items()))
    run_name = f"{job.name}-{suffix}"[:63].rstrip("-.") if job.name else None
    return job.model_copy(
        update={"name": run_name, "env": env, "target": job.target.model_copy(update={"args": tuple(args)})}
    )


def sweep(
    made: Sequence[tuple[dict[str, str], Job]], environ: Mapping[str, str], say: Say, *, parallel: int
) -> list[Result]:
    """Run them, ``parallel`` at a time; a result for each, in order. One that fails does not stop the others."""
    starting = threading.Lock()  # GPUs are chosen, and an image is built, by one at a time

    def one(variant: tuple[dict[str, str], Job]) -> Result:
        settings, job = variant
        label = " ".join(f"{name}={value}" for name, value in settings.items())
        result = Result(settings)
        try:
            with starting:
                prepared = launch.prepare(job, environ)
                result.run_id = prepared.run.id
                launch.start(prepared, environ, lambda line: None)
            say(f"{label}: {result.run_id} started")
            follow(prepared.run, lambda stream, data: None, environ, say=lambda line: say(f"{label}: {line}"))
            receipt = finalise(prepared.run, environ)
            if receipt is not None:
                _fill(result, receipt)
        except SeatrialError as error:
            result.exit_code, result.outcome = error.exit_code, error.message
        say(f"{label}: {result.outcome}")
        return result

    with ThreadPoolExecutor(max_workers=parallel) as pool:
        return list(pool.map(one, made))


def _fill(result: Result, receipt: Receipt) -> None:
    measured = receipt.measurements
    result.exit_code, result.outcome = receipt.exit_code, receipt.outcome.brief
    result.seconds, result.images_per_s, result.energy_j = measured.wall_s, measured.images_per_s, measured.energy_j
    used = [gpu.utilization_mean_pct for gpu in measured.gpus if gpu.utilization_mean_pct is not None]
    result.utilization_pct = sum(used) / len(used) if used else None
    result.metrics = {metric.name: metric.last for metric in measured.metrics}


def page_path(project: Path, name: str) -> Path:
    """Where a sweep's page and numbers are kept."""
    return project / ".seatrial" / "sweeps" / name
