"""How a setting reaches the target: a flag or a variable that its source shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.reading.modules import find_module
from seatrial.planning.recipe_env import FLAGS, PRECISIONS


def ways_in(job: Job, names: Sequence[str]) -> dict[str, str]:
    """Name of a setting → ``--flag``, or the name of a variable. Raises UsageError."""
    return {name: way_in(job, name) for name in names}


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
    if re.search(rf"""["']{re.escape(variable)}["']""", source):
        return variable
    constant = re.search(rf"(?m)^\s*({re.escape(variable)}|{re.escape(name.replace('-', '_'))})\s*(:[^=\n]+)?=", source)
    raise UsageError(
        f"{job.target.value} has no way to set {name}",
        cause=f"{constant[1]} is a constant in its source, which nothing from outside reaches"
        if constant
        else f"neither --{name.replace('_', '-')} nor the variable {variable} is in its source",
        run=f'parser.add_argument("--{name.replace("_", "-")}") in {job.target.value}, or os.environ["{variable}"]',
    )


def _source(job: Job) -> str | None:
    """The target's text; None for an image, or a module that is not the project's."""
    path = job.project / job.target.value if job.target.kind == "script" else None
    if job.target.kind == "module":
        path = find_module(job.target.value, [job.project, job.project / "src"], main=True)
    return path.read_text(encoding="utf-8", errors="replace") if path is not None else None


def varied(job: Job, chosen: Mapping[str, str], ways: Mapping[str, str]) -> Job:
    """The job with these settings handed to its target, and in its name."""
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
