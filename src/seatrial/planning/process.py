"""Plan a process of this machine: its interpreter, and GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.backends.containers.run_options import read_env_file
from seatrial.backends.local import venv_interpreter
from seatrial.errors import CommandError, UsageError, fallback
from seatrial.images.dockerfile.context import write_wheel
from seatrial.images.plan import factory_facts, plan_packages
from seatrial.images.recipes import recipe, recipe_requirements, serving_requirements
from seatrial.images.sources import pip_conf
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_MODELS
from seatrial.job.model import Job
from seatrial.job.plan import Choice, Gpu, Injection, VenvPlan
from seatrial.job.reading.constants import ANY
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.limits import ray_env
from seatrial.planning.host import HostFacts
from seatrial.planning.launcher import meeting
from seatrial.planning.secrets import without_secrets
from seatrial.planning.site import GpuPlan, Parts, Site, local_places, target_argv
from seatrial.system import command
from seatrial.system.host import Host
from seatrial.system.project_files import read_sources
from seatrial.system.text import as_typed

#: Most bytes of sources that are searched for a variable.
_MOST_BYTES = 20 << 20

#: Prints the missing ones of its arguments, import names or package names. Imports nothing of them, and nothing of the
#: current folder, whose csv.py is somebody else's code: a plan runs none.
_MISSING = Path(__file__).with_name("missing.py.txt").read_text("utf-8")


def selected(site: Site) -> tuple[Gpu, ...]:
    """Return the GPUs of a site on this machine."""
    assert site.selection is not None, "a place on this machine is given its GPUs"
    return site.selection.gpus


def gpu_count(site: Site) -> int:
    """Return the number of GPUs, of this machine or of the one that the plan is made for."""
    return site.another.count if site.another else len(selected(site))


def gpu_plan(job: Job, site: Site, injection: Injection) -> GpuPlan:
    """Plan the GPUs: none requested, or ``auto`` has found none, or these are required."""
    gpus = selected(site)
    if site.another:
        return GpuPlan("required", site.another.count, injection)
    if gpus:
        return GpuPlan("required", len(gpus), injection, gpus)
    return GpuPlan("none" if job.gpus.kind == "none" else "auto-cpu", 0, injection)


@dataclass(frozen=True)
class LocalPython:
    """The interpreter, why this one, and what has to be made first."""

    interpreter: Path
    choices: tuple[Choice, ...]
    venv: VenvPlan | None = None
    env: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def choose_python(job: Job, script: ScriptFacts, host: HostFacts, *, cpu_only: bool) -> LocalPython:
    """Run the active environment's Python and ours, and choose the first with all that the target imports."""
    needed = _needed(job, script, gpus=not cpu_only)
    missing: dict[Path, list[str]] = {}
    for python in candidates(host):
        missing[python] = missing_in(python, needed)
        if not missing[python]:
            reason = "has everything that the target imports"
            return LocalPython(python, (Choice(what="python", value=str(python), reason=reason),))
    base = Path(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    resolved = plan_packages(job, script=script, cpu_only=cpu_only, machine=host.machine(), python=version)
    found, choices = resolved.requirements, resolved.choices
    needs_index = resolved.index and (resolved.index_needed or not _names_a_source(base))
    index = [f"--extra-index-url {resolved.index}"] if needs_index else []
    own = [line.replace(" = ", " ", 1) for line in (pip_conf(job.image) or "").splitlines()[1:] if line]
    lines = (*index, *(f"--{line}" for line in own), *found.options, *found.lines)
    venv = VenvPlan(directory=host.cache_folder / "venvs", base=base, requirements=lines)
    interpreter = venv_interpreter(venv.directory, lines, base)
    lacking = "; ".join(f"{python} lacks {', '.join(names)}" for python, names in missing.items())
    choice = Choice(what="python", value=f"a managed venv, {interpreter}", reason=lacking)
    env = {"PYTHONPATH": str(write_wheel(host.cache_folder / "recipes"))} if job.target.kind == "recipe" else {}
    return LocalPython(interpreter, (choice, *choices), venv, env, resolved.warnings)


def _needed(job: Job, script: ScriptFacts, *, gpus: bool) -> tuple[str, ...]:
    """Import names or names of packages, without their extras."""
    if job.serve is not None:
        return tuple(name.partition("[")[0] for name in serving_requirements(job.serve, gpus=gpus))
    if job.target.kind != "recipe":
        return script.imports
    factory = factory_facts(job)
    return (*recipe_requirements(job.target), *(factory.imports if factory is not None else ()))


def candidates(host: Host) -> list[Path]:
    """Return the Pythons that may have a target's imports: the active virtual or conda environment's, then ours."""
    own = Path(sys.executable)
    folder = host.env.get("VIRTUAL_ENV") or host.env.get("CONDA_PREFIX")  # in the order of PATH
    active = Path(folder) / "bin" / "python" if folder else own
    if not active.exists() or active.parent.resolve() == own.parent.resolve():  # python and python3 of one environment
        return [own]
    return [active, own]


@fallback(["Python 3.8 or newer"], on=CommandError)  # an environment's that is too old, or broken
def missing_in(python: Path, needed: tuple[str, ...]) -> list[str]:
    """Return the names of these modules or packages that an interpreter lacks."""
    return command.check([str(python), "-c", _MISSING, *needed], timeout_s=30).stdout.split()


@fallback(False, on=CommandError)  # a Python without pip: the venv brings its own
def _names_a_source(python: Path) -> bool:
    """Return True if pip's own configuration names a source of packages; no index of ours is added then."""
    configured = command.check([str(python), "-I", "-m", "pip", "config", "list"], timeout_s=30).stdout
    return any(name in configured for name in ("index-url", "find-links", "no-index"))


def process_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Plan a process. Raises UsageError for a folder missing or not writable, ImageError when no interpreter fits."""
    _refuse_unwritable(script)
    gpus = selected(site)
    python = choose_python(job, script, site.host, cpu_only=not gpus)
    places = local_places(job, site.outputs, site.resumed.source / "checkpoints" if site.resumed else None)
    from_files = {name: value for path in job.env_files for name, value in read_env_file(path, site.host).items()}
    own = without_secrets({**from_files, **job.env}, job)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
    return Parts(
        places,
        *target_argv(job.target, None, str(python.interpreter), places),
        gpus=gpu_plan(job, site, "host" if gpu_count(site) else "none"),
        keeps_checkpoints=job.target.kind == "recipe" and recipe(job.target.value).trains,
        meeting=meeting(job),
        env={**own, **ray_env(script.ray_evidence, None, {**site.host.env, **own}), **python.env, **visible},
        python=str(python.interpreter),
        venv=python.venv,
        choices=python.choices,
        warnings=(*python.warnings, *_without_effect(job, script)),
    )


def _without_effect(job: Job, script: ScriptFacts) -> Iterator[str]:
    """Yield a sentence for a folder that only a variable brings to a process of this machine, which nothing reads."""
    if job.target.kind not in ("script", "module"):
        return
    text = "".join(read_sources((job.project / file for file in script.files), job.project, _MOST_BYTES))
    for flag, folder, target in (("--data", job.data, CONTAINER_DATA), ("--models", job.models, CONTAINER_MODELS)):
        variable = f"SEATRIAL_{flag[2:].upper()}_DIR"
        if folder is not None and variable not in text:
            given = f"--on local sets {variable}, which {job.target.value} does not read"
            yield f"{flag} has no effect: only containers have {target}, and {given}"


def _refuse_unwritable(script: ScriptFacts) -> None:
    """Refuse a script certain to write where this user cannot, as late as in its last line. Raises UsageError."""
    for write in script.writes:
        if not write.certain or not write.path.startswith("/"):
            continue
        path = Path(write.path.partition(ANY)[0] + ("x" if ANY in write.path else ""))
        folder = path if write.folder and ANY not in write.path else path.parent
        nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
        if nearest.is_dir() and not os.access(nearest, os.W_OK):
            message = f"{write}, and this user cannot write to {nearest}: the run would fail there"
            cause = "--on local runs the script as this user; in a container ./models is mounted at /models"
            run = f'sudo install -d -o "$USER" {as_typed(folder)}   # or: seatrial run … --on docker'
            raise UsageError(message, cause=cause, run=run)
