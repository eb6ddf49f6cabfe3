"""How a setting reaches the target: a flag or a variable that its source shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.reading.modules import find_module
from seatrial.planning.recipe_env import FLAGS, PRECISIONS

#: Libraries that make a flag of a name in the source → what joins that name's words in the flag.
_FLAG_MAKERS = {
    r"(?:import|from)\s+(?:tyro|fire|simple_parsing|jsonargparse|absl)\b": "_",
    r"\bHfArgumentParser\b": "_",
    r"(?:import|from)\s+typer\b": "-",
}

#: Scripts whose globals are set by ``--name=value``, as nanoGPT's.
_CONFIGURATOR = "configurator.py"

_IMPORT = re.compile(r"(?m)^\s*(?:from\s+\.*([\w.]*)\s+import\s+([\w, ]+)|import\s+([\w., ]+))")

#: Files of a project that are looked through for a flag.
_MOST_FILES = 200


def ways_in(job: Job, names: Sequence[str]) -> dict[str, str]:
    """Name of a setting → ``--flag``, ``--flag=``, or the name of a variable. Raises UsageError."""
    return {name: way_in(job, name) for name in names}


def way_in(job: Job, name: str) -> str:
    """How the target takes a setting: ``--flag``, ``--flag=`` (the value in the same word), or the name of a variable.

    Raises UsageError when its source shows neither.
    """
    variable = name.upper().replace("-", "_")
    if job.target.kind == "recipe":
        return FLAGS.get(variable, "--" + name.replace("_", "-"))
    source = _sources(job)
    if source is None:
        return variable
    word = name.replace("-", "_")
    for flag in ("--" + name.replace("_", "-"), "--" + name.replace("-", "_")):
        if re.search(rf"""["']{re.escape(flag)}["'=]""", source):
            return flag
    if re.search(rf"""["']{re.escape(variable)}["']""", source):
        return variable
    if re.search(rf"\b{re.escape(word)}\b", source):
        joins = next((join for maker, join in _FLAG_MAKERS.items() if re.search(maker, source)), None)
        if joins is not None:
            return "--" + word.replace("_", joins)
        if _CONFIGURATOR in source:
            return f"--{word}="
    both = f"{re.escape(variable)}|{re.escape(word)}"
    constant = re.search(rf"(?m)^(?:({both})|\s+({both})(?=\s))\s*(?::[^=\n]+)?=", source)  # not f(name=value)
    fixed = constant and (constant[1] or constant[2])
    raise UsageError(
        f"{job.target.value} has no way to set {name}",
        cause=f"{fixed} is a constant in its source, which nothing from outside reaches"
        if fixed
        else f"neither --{name.replace('_', '-')} nor the variable {variable} is in its source",
        run=f'parser.add_argument("--{name.replace("_", "-")}") in {job.target.value}, or os.environ["{variable}"]',
    )


def _sources(job: Job) -> str | None:
    """The text of the target and of what it imports of the project; None for an image, or a module of no project."""
    path = job.project / job.target.value if job.target.kind == "script" else None
    if job.target.kind == "module":
        path = find_module(job.target.value, [job.project, job.project / "src"], main=True)
    if path is None:
        return None
    found: dict[Path, str] = {}
    waiting = [path]
    while waiting and len(found) < _MOST_FILES:
        path = waiting.pop(0)
        if path in found:
            continue
        found[path] = path.read_text(encoding="utf-8", errors="replace")
        for match in _IMPORT.finditer(found[path]):
            package, names, plain = match.groups()
            modules = [one.split()[0] for one in (plain or "").split(",") if one.strip()]
            if package is not None:
                modules += [
                    package,
                    *(f"{package}.{one.split()[0]}".strip(".") for one in names.split(",") if one.strip()),
                ]
            roots = [path.parent, job.project, job.project / "src"]
            waiting += [there for module in modules if module and (there := find_module(module, roots)) is not None]
    return "\n".join(found.values())


def varied(job: Job, chosen: Mapping[str, str], ways: Mapping[str, str]) -> Job:
    """The job with these settings handed to its target, and in its name."""
    args, env = list(job.target.args), dict(job.env)
    for name, value in chosen.items():
        if ways[name].endswith("="):
            args.append(ways[name] + value)
        elif ways[name].startswith("--"):
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
