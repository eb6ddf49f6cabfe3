"""Plan a job's image: its base, packages and Dockerfile. Pure but for reading the project's own files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.accelerators import for_nvidia, without_use
from seatrial.images.base import DEFAULT_BASE, Base, python_of_image, with_nvcc
from seatrial.images.base_and_stack import barred_by_code, barred_by_packages, base_and_stack, frameworks
from seatrial.images.build.size import disk_choice, size_choice
from seatrial.images.dockerfile.context import WHEEL_NAME, OwnCode, sources_of, to_compile, wheel_bytes
from seatrial.images.dockerfile.layers import TOOLS, ImageContents, Layers, digest_of, program, split
from seatrial.images.dockerfile.render import CA_SECRET, VENV_PYTHON, WHEELS, render, render_plain
from seatrial.images.recipes import recipe_requirements, serving_requirements
from seatrial.images.requirements.adjust import for_cuda, system_packages
from seatrial.images.requirements.imports import absent_data, still_warned
from seatrial.images.requirements.on_framework_image import onto_framework_image
from seatrial.images.requirements.other_formats import read_list
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, checked_requirement
from seatrial.images.requirements.project import project_needs
from seatrial.images.requirements.removed_apis import bounds_of_code, check_code, is_below, transformers_for_torch
from seatrial.images.requirements.source_builds import SourceBuild
from seatrial.images.resolve.builds import build_choices, with_builds
from seatrial.images.resolve.check import Checked, resolve_packages
from seatrial.images.resolve.dates import day_of
from seatrial.images.resolve.fix import Chosen, of_list_or_imports
from seatrial.images.resolve.framework import FRAMEWORKS, Resolved
from seatrial.images.resolve.uv import UvResolver
from seatrial.images.slim.options import Slimming, slimmer_bytes, slimming_for
from seatrial.images.sources import ca_bundle, digest_of_sources, digest_of_wheels, has_own_sources, wheels_of
from seatrial.job.in_container import CONTAINER_PROJECT
from seatrial.job.model import Job, Target
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.reading.modules import find_module
from seatrial.job.script import ScriptFacts, script_facts, source_facts
from seatrial.stack.facts import table
from seatrial.stack.machine import TargetMachine, parse_target

#: The variable that has Accelerate use DeepSpeed's CPU optimizer, which nvcc compiles at its first use.
_OFFLOADS = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"
_COMPILER = Choice(what="compiler", value="g++ and Python headers", reason="the target compiles at run time")


def ready_image(tag: str, **facts: Any) -> tuple[ImagePlan, Choice]:
    """Return the plan for an existing image; ``facts`` are its entrypoint, cmd, env and python, as far as known."""
    choice = Choice(what="image", value=tag, reason="an existing image was requested; nothing is built")
    return ImagePlan(**{"tag": tag, "build": False, "python": None, **facts}), choice


def plan_image(
    job: Job,
    *,
    script: ScriptFacts,
    cpu_only: bool,
    machine: TargetMachine | None = None,
    multi_gpu: bool = False,
    resolver: UvResolver | None = None,
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """Choose the image that the job runs in, with the reason for each choice.

    Args:
        script: what reading the target showed; without meaning for a ready image.
        cpu_only: the run has no GPU, unless ``image.target`` names a machine with one.
        machine: what it will run on, unless ``image.target`` names another; None: nothing is known of it.
        multi_gpu: the target may use several GPUs, so that what those need is kept when slimming.
        resolver: checks versions on the package indexes; None: only the tables are used.

    Returns:
        (plan, choices). A ready image's entrypoint, cmd, env and python are for the caller to fill in from its
        ImageFacts.

    Raises:
        ConfigError: a requirement, file or folder that the build could not use, by ``file:line`` or key.
        GpuContractError: no build of the framework does on the machine's GPUs or driver.
        TargetError: no such recipe.
    """
    if job.image.ready:
        ready, choice = ready_image(job.image.ready)
        return ready, (choice,)
    cpu_only = cpu_only and (job.image.target is None or job.gpus.kind == "none")
    machine = _machine(job, machine, cpu_only)
    choose = partial(_chosen, job, script, machine, resolver)
    prepared = partial(_prepared, job, script, machine, cpu_only)
    base, resolved, checked, needs, old_calls = of_list_or_imports(choose, prepared, day_of(job), resolver)
    compiles = script.compiler_evidence is not None or needs.nvcc is not None
    idle = () if cpu_only else without_use(job, script, needs, resolved, checked, machine)
    lines = resolved.requirements.lines
    slimming = slimming_for(job, resolved.stack, machine, compiles=compiles, multi_gpu=multi_gpu, requirements=lines)
    ours = "seatrial" in (each.partition(".")[0] for each in script.modules)
    own = WHEEL_NAME if job.target.kind == "recipe" or ours else None
    with_system, system_choices, system_warnings = _with_system_packages(job, script, resolved, checked)
    layers = split(resolved.requirements, checked.locked, checked.builds, resolved.pages.values())
    extensions, left_out = to_compile(needs, with_gpus=machine is not None)
    known = resolved.stack.wheel.sm if resolved.stack.wheel else ()  # torch's compiler looks for a GPU if it gets none
    architectures = (machine.capabilities or known) if machine else ()
    own_code = OwnCode(extensions, architectures, sources_of(job.project, extensions))
    plan = _to_build(with_system, base, resolved, layers, slimming, own, own_code, checked.builds, compiles=compiles)
    of_builds = build_choices(checked.builds, checked.lock, resolved)
    choices = (base.choice, needs.choice, *resolved.choices, *checked.choices, *of_builds)
    choices += (*system_choices, *([_COMPILER] * compiles), *own_code.choices, *slimming.choices)
    warnings = (*old_calls, *idle, *needs.warnings, *left_out, *resolved.warnings, *checked.warnings, *system_warnings)
    if resolver and resolver.late and resolver.late[0] not in "".join(warnings):
        warnings += (f"{resolver.late[0]}: with its answers the packages may differ",)
    built = {each.what.removesuffix(" build"): each.value for each in resolved.choices if each.what.endswith(" build")}
    also = {name: build for name, build in built.items() if name not in plan.stack}
    plan = plan.changed(packages_bytes=checked.packages_bytes, also=also)
    size, too_large = size_choice(plan, job.image.slim, slimming.left_out, job.criteria.max_image_bytes)
    plan = plan.changed(warnings=(*warnings, *too_large))
    takes_space = bool(lines or with_system.image.system_packages or own or plan.context_files or compiles)
    return plan, (*choices, *((size, disk_choice(plan)) if takes_space else ()))


def _chosen(
    job: Job, script: ScriptFacts, machine: TargetMachine | None, resolver: UvResolver | None, needs: Needs
) -> Chosen:
    base, resolved, checked, needs = _as_the_code_needs(job, script, needs, machine, resolver)
    return base, resolved, checked, needs, check_code(script, needs, resolved)


def _prepared(job: Job, script: ScriptFacts, machine: TargetMachine | None, cpu_only: bool, *, imported: bool) -> Needs:
    needs = image_needs(job, script, gpus=not cpu_only, imported=imported)
    return onto_framework_image(job.image.base, script, needs if cpu_only else for_nvidia(needs, script), machine)


def _as_the_code_needs(
    job: Job, script: ScriptFacts, needs: Needs, machine: TargetMachine | None, resolver: UvResolver | None
) -> tuple[Base, Resolved, Checked, Needs]:
    """Choose packages, with a framework as old as the code if the machine supports one, by the bounds that can hold."""

    def chosen(bounds: Iterable[tuple[str, str]], held: Needs = needs) -> tuple[Base, Resolved, Checked, Needs]:
        for bound, why in bounds:
            held = held.changed(held.requirements.plus(constraints=(bound,)), why=f"{bound}, {why}")
        return _with_what_they_bring(job, script, held, machine, resolver)

    first = dict(reversed([*bounds_of_code(script, needs)]))  # of several places the first shows why
    bounds = tuple(reversed(first.items()))
    for fitted in transformers_for_torch(needs):
        with suppress(ConfigError, GpuContractError):
            return chosen(bounds, fitted)
    if not bounds:
        return chosen(())
    with suppress(ConfigError, GpuContractError):
        return chosen(bounds)
    kept: list[tuple[str, str]] = []
    for bound in bounds if len(bounds) > 1 else ():
        with suppress(ConfigError, GpuContractError):
            chosen((*kept, bound))
            kept.append(bound)
    return chosen(kept)


def _with_what_they_bring(
    job: Job, script: ScriptFacts, needs: Needs, machine: TargetMachine | None, resolver: UvResolver | None
) -> tuple[Base, Resolved, Checked, Needs]:
    """Choose the packages, and what only they require: a build of a framework, such as torch for peft, and nvcc."""
    if job.env.get(_OFFLOADS) == "cpu":
        script = replace(script, nvcc_evidence=script.nvcc_evidence or f"{_OFFLOADS}=cpu")
    needs = needs if machine is None else with_nvcc(needs, script)
    found = _with_packages(job, script, needs, machine, resolver)
    _, resolved, checked, needs = found
    if job.image.base != DEFAULT_BASE:
        return found
    more = needs if machine is None else with_nvcc(needs, script, checked.names)
    more = with_builds(more, checked.builds, [*map(canonical_name, further_lines(job))], gpus=machine is not None)
    more = for_cuda(more, resolved.stack.wheel.cuda) if resolved.stack.wheel and resolved.stack.wheel.cuda else more
    built_on = {each for build in checked.builds for each in build.modules}
    distutils = next((at for name, at in script.modules.items() if name.partition(".")[0] == "distutils"), None)
    if distutils and "setuptools" not in checked.names and resolved.stack.python in ("3.12", "3.13", "3.14"):
        why = f"setuptools, as {distutils} imports distutils, which Python 3.12 removed"
        more = more.changed(more.requirements.plus("setuptools"), why=why)
    brought = next((each for each in FRAMEWORKS if each in checked.names or each in built_on), None)
    if brought is not None and resolved.stack.wheel is None:
        reason = f"{needs.reason}; {brought}, which one of them depends on"
        more = replace(more, imports=(*needs.imports, brought), reason=reason)
    return found if more == needs else _with_packages(job, script, more, machine, resolver)


def _with_packages(
    job: Job, script: ScriptFacts, needs: Needs, machine: TargetMachine | None, resolver: UvResolver | None
) -> tuple[Base, Resolved, Checked, Needs]:
    """Choose base image, stack and Python together; a base of the user's own is not refused for its Python."""
    barred, own_base = {**barred_by_packages(needs), **barred_by_code(script, needs)}, job.image.base != DEFAULT_BASE
    python = needs.image.python if needs.image else python_of_image(job.image.base) if own_base else None
    base, resolved, checked, needs = resolve_packages(
        resolver,
        job,
        needs,
        {} if own_base else barred,
        lambda barred, needs: base_and_stack(job, needs, machine, barred),
        own_base=own_base,
    )
    at = {each.name: each.version for each in checked.lock.packages} if checked.lock else {}
    notes = [*absent_data(script, needs.requirements, at)]
    game, release = script.modules.get("gymnasium.atari"), at.get("gymnasium", "0")
    if game and release[0] != "0" and script.where.keys().isdisjoint(("ale_py", "rl_zoo3")):
        notes.append(f"{game}: gymnasium {release} has this game only after import ale_py; add this import")
    needs = replace(needs, warnings=(*still_warned(needs, checked.names), *notes))
    if python in barred:
        note = f"{barred[python]}, and the base image has Python {python}"
        checked = replace(checked, warnings=(note, *checked.warnings))
    return base, resolved, checked, needs


def _with_system_packages(
    job: Job, script: ScriptFacts, resolved: Resolved, checked: Checked
) -> tuple[Job, tuple[Choice, ...], tuple[str, ...]]:
    """Add the Debian packages that the job's packages need; on a base of the user's own, only warn about them."""
    locked = checked.lock.packages if checked.lock else ()
    needed = system_packages(resolved.requirements.lines, (f"{each.name}=={each.version}" for each in locked))
    needed |= {each.name: ("libgomp1", *needed.get(each.name, ())) for each in checked.builds if each.openmp}
    data, started = table("system_packages"), script.modules.items()
    programs = ((name.partition("subprocess.")[2], at) for name, at in started)
    starts = {f"{at} starts {name}": data["programs"][name] for name, at in programs if name in data["programs"]}
    packages = sorted({*starts.values(), *chain(*needed.values())} - set(job.image.system_packages))
    known, old = resolved.requirements.plus(*(f"{each.name}=={each.version}" for each in locked)), data["glibc"]
    unfit = [name for name, to in old.items() if any(is_below(each.specifier, to) for each in known.of(name))]
    base = f'in seatrial.toml: [image] base = "python:{resolved.stack.python}-slim-bullseye"'
    needs = f"needs a glibc before 2.34, and its import fails in this image; {base}"
    warnings = tuple(f"{each} before {old[each]} {needs}" for each in unfit if job.image.base == DEFAULT_BASE)
    sent = ((script.modules.get(f"subprocess.{name}"), name) for name in data["of_clusters"].split())
    lacks = "which works on its cluster alone, not in this image: run the script that it submits in its place"
    warnings += tuple(f"{at} starts {name}, {lacks}" for at, name in sent if at and job.image.base == DEFAULT_BASE)
    if not packages:
        return job, (), warnings
    if job.image.base != DEFAULT_BASE:
        listed = ", ".join(f'"{each}"' for each in packages)
        lacks = f"{job.image.base} lacks {'any of them' if packages[1:] else 'it'}"
        fix = f"if {lacks}, add in seatrial.toml: [image] system_packages = [{listed}]"
        of_packages = (f"{name} needs {', '.join(few)}" for name, few in needed.items())
        return job, (), ("; ".join([*of_packages, *starts, fix]),)
    of_wheels = [f"{', '.join(needed)}: the wheels do not include them"] if needed else []
    choice = Choice(what="system packages", value=", ".join(packages), reason="; ".join([*of_wheels, *starts]))
    job = job.changed(image=job.image.changed(system_packages=(*job.image.system_packages, *packages)))
    return job, (choice,), warnings


def _to_build(
    job: Job,
    base: Base,
    resolved: Resolved,
    layers: Layers,
    slimming: Slimming,
    own_wheel: str | None,
    own_code: OwnCode,
    builds: tuple[SourceBuild, ...],
    *,
    compiles: bool,
) -> ImagePlan:
    """Render the Dockerfile and plan its build; the tag is a digest of all that goes in."""
    wheels, texts = wheels_of(job), {**layers.texts(), **own_code.texts}
    sources, own_sources = digest_of_sources(job, wheels)
    slimmer = slimmer_bytes() if slimming.arguments else b""
    folders = sorted({name.partition("/")[0] for name in texts})
    digests = {TOOLS: digest_of(texts, TOOLS), **{folder: digest_of(texts, folder, slimmer) for folder in folders}}
    contents = ImageContents(
        slug=slug(job.target.value if job.target.kind == "recipe" else job.project.name),
        options=job.image,
        base=base,
        resolved=resolved,
        layers=layers,
        slimming=slimming,
        digests=digests,
        compiles=compiles,
        wheels=digest_of_wheels(wheels),
        sources=sources,
        own_sources=own_sources,
        own_wheel=own_wheel,
        extensions=own_code.commands(),
        builds=builds,
        architectures=own_code.architectures,
    )
    dockerfile = render(contents)
    everything = json.dumps([dockerfile, texts], sort_keys=True).encode() + (wheel_bytes() if own_wheel else b"")
    return ImagePlan(
        tag=f"seatrial/{contents.slug}:{hashlib.sha256(everything + program() + slimmer).hexdigest()[:20]}",
        build=True,
        base=base.image,
        python=VENV_PYTHON,
        dockerfile=dockerfile,
        plain_dockerfile=render_plain(contents),
        context_files={f"{WHEELS}/{path.name}": str(path) for path in wheels},
        context_texts=texts,
        own_wheel=own_wheel,
        secrets={CA_SECRET: str(ca_bundle(job))} if job.image.ca_bundle else {},
        network=job.image.build_network,
        stack=resolved.stack.facts,
        index_decides=has_own_sources(job.image) or resolved.requirements.names_an_index,
        architectures=slimming.architectures,
        slimmed=bool(slimming.arguments),
    )


def plan_packages(
    job: Job, *, script: ScriptFacts, cpu_only: bool, machine: TargetMachine | None = None, python: str | None = None
) -> Resolved:
    """Return the requirements for a virtual environment of this Python, where no image is chosen."""
    needs = image_needs(job, script, gpus=not cpu_only)
    resolved = frameworks(job, needs, _machine(job, machine, cpu_only), python=python)
    warnings = (*needs.warnings, *resolved.warnings)
    if python is not None and not needs.python.contains(f"{python}.99"):
        warnings += (f"the project requires Python {needs.python}, and this is Python {python}",)
    pages = (f"--find-links {page}" for page in dict.fromkeys(resolved.pages.values()))
    found = replace(resolved.requirements, options=(*resolved.requirements.options, *pages))
    choices = (each for each in resolved.choices if each.what != "python")  # it is chosen by where this runs
    return replace(resolved, requirements=found, choices=(needs.choice, *choices), warnings=warnings)


def _machine(job: Job, machine: TargetMachine | None, cpu_only: bool) -> TargetMachine | None:
    """Return the machine to build for, a named target first; None for the CPU."""
    if job.image.target is not None and job.gpus.kind != "none":
        return parse_target(job.image.target)
    return None if cpu_only else machine or TargetMachine()


def image_needs(job: Job, script: ScriptFacts, *, gpus: bool = False, imported: bool = False) -> Needs:
    """Return the target's requirements and ``image.requirements``; ``imported``: of frozen lists what is imported."""
    further = tuple(further_lines(job))
    serving = () if job.serve is None else serving_requirements(job.serve, gpus=gpus)
    added = f"image.requirements adds {', '.join(further)}"
    if (factory := factory_of(job.target, job.project)) is not None and (facts := factory_facts(job)) is not None:
        own = recipe_requirements(job.target)
        needs = project_needs(job.project, facts, (job.project / factory).parent, also=(*own, *further))
        listed = {canonical_name(line) for line in needs.requirements.lines}
        needs = needs.changed(needs.requirements.plus(*(name for name in own if name not in listed)))
    elif job.target.kind == "recipe":
        found = Requirements(lines=serving or recipe_requirements(job.target))
        name = f"the recipe {job.target.value}" if job.serve is None else f"the server of {job.serve.model}"
        needs = Needs(found, name, f"{name} uses them", imports=script.imports)
    else:
        file = job.project / job.target.value if job.target.kind == "script" else None
        places = [job.folder, job.project, job.project / "src"] if job.target.kind == "module" else []
        module = find_module(job.target.value, places, main=True)
        around = file.parent if file else job.folder

        def reread(folders: Iterable[str]) -> ScriptFacts:
            own = filter(None, [job.env.get("PYTHONPATH")])
            path = ":".join([*own, *(f"{CONTAINER_PROJECT}/{each}" for each in folders)])
            return source_facts(job.changed(env={**job.env, "PYTHONPATH": path}))

        needs = project_needs(
            *(job.project, script, around, further),
            file=file,
            folder=job.folder,
            package=module and module.parent,
            reread=reread,
            imported=imported,
        )
    if not further:
        return needs
    named = {canonical_name(line) for line in further}
    open_names = {line for line in needs.requirements.lines if re.fullmatch(r"[\w.-]+", line)}
    lines = (line for line in needs.requirements.lines if line not in open_names or canonical_name(line) not in named)
    return needs.with_lines((*lines, *further), why=added)


def further_lines(job: Job) -> Iterator[str]:
    """Yield ``image.requirements``, and the lines of the lists that it names as ``-r requirements.txt``."""
    for line in job.image.requirements:
        if line.startswith("-r "):
            yield from read_list(job.project / line[3:].strip(), job.project).lines
        else:
            yield checked_requirement(line, "seatrial.toml: image.requirements")


def factory_of(target: Target, project: Path) -> Path | None:
    """Return the project's file, relative to it, that makes the network of an exported model; None without one."""
    if not (module := _factory(target).partition(":")[0].replace(".", "/")):
        return None
    places = (f"{folder}{module}{end}" for folder in ("", "src/") for end in (".py", "/__init__.py"))
    return next((Path(place) for place in places if (project / place).is_file()), None)


def factory_facts(job: Job) -> ScriptFacts | None:
    """Read the facts of the factory's file and of the function in it; None without such a file."""
    if (file := factory_of(job.target, job.project)) is None:
        return None
    calls = (_factory(job.target).partition(":")[2],)
    return script_facts(Target(kind="script", value=str(file)), job.project, calls=calls)


def _factory(target: Target) -> str:
    """Return the ``module:function`` that an export names with ``--model-factory``; "" without one."""
    named = [value for flag, value in pairwise(target.args) if flag == "--model-factory"]
    return named[-1] if named and target.kind == "recipe" and target.value == "export" else ""


def slug(name: str) -> str:
    """Return the name part of the tags of this project or recipe."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project"
