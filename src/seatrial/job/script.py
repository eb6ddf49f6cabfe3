"""ScriptFacts: what a training script shows of itself when read, not run: imports, framework, launcher, compiler."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from seatrial.errors import TargetError
from seatrial.findings.catalogue import by_id
from seatrial.job.in_container import CONTAINER_PROJECT
from seatrial.job.model import Job, Target
from seatrial.job.own_workload import blocked_mount, env_of, own_container_of, replicas
from seatrial.job.reading.evidence import ProjectReading, Readings
from seatrial.job.reading.modules import FRAMEWORKS, STANDARD_MODULES, find_module, folder_of, is_file, is_folder, lost
from seatrial.job.reading.parsed_modules import idle_error, notebook_error
from seatrial.job.reading.project_reader import read_project
from seatrial.job.reading.signs import COMPILES, NAMED, REPORT_TO, SET_AGAIN
from seatrial.job.startable import module_name
from seatrial.recipe_names import source_of
from seatrial.system.command import doing
from seatrial.system.project_files import PACKAGING, read_bytes
from seatrial.system.text import as_typed, shown

#: Top-level module → its framework. The frameworks themselves are searched first.
BUILT_ON: dict[str, str] = json.loads(Path(__file__).with_name("built_on.json").read_text())

HOROVOD = "horovod"

#: It starts processes of its own on the GPUs that it finds, one for each worker or trial.
RAY = "ray"

#: Characters of a dotted name in a sentence.
_LONGEST_NAME = 80


@dataclass(frozen=True)
class ScriptFacts(Readings):
    """Facts from reading a script and the project's modules that it imports. Evidence is ``file.py:line name``.

    Attributes:
        imports: top-level names of modules that are neither the project's nor the standard library's, and without
            which the script cannot start.
        optional_imports: such names behind a condition, in functions that may never be called, in
            ``try … except ImportError``. likely_imports: those of them behind conditions that may hold.
        modules: dotted name of what ``imports`` stands for, as it is written → ``file.py:line``.
        where: name of either → ``file.py:line`` of its first import.
        tensorflow_1: where it cannot do without what TensorFlow 2 has under tf.compat.v1 alone, or None.
        tensorflow_1_perhaps: where code that may run has such a name; None if TensorFlow 2's names occur as well.
        framework: ``torch``, ``tensorflow``, ``jax`` or None.
        horovod: dotted name of each part of Horovod that it imports → ``file.py:line``; it is in no other list, since
            nothing is installed for it. needs_horovod: those without which it cannot start.
        horovod_elastic: where it cannot do without Horovod's elastic ranks, or None.
        without_horovod_evidence: what torchrun_evidence and one_process_evidence are without Horovod.
        torchrun_evidence: where it can use one process per GPU, or None.
        launcher_evidence: where it cannot run without what torchrun sets, even as one process, or None.
        one_process_evidence: where it drives several GPUs from one process, or starts ranks itself, or None.
        rank_option: the option by which each rank gets its GPU, ``--local_rank``, or None.
        workers_evidence: where it joins one process a node, TensorFlow's by TF_CONFIG or JAX's coordinator, or None.
        keras_backend: where it sets KERAS_BACKEND and to what, ``train.py:2 jax``, or None. keras_default: likewise
            unless it is set.
        compiler_evidence: where it compiles at run time (torch.compile, Triton, C++ extensions), so that the
            image needs a C compiler, or None.
        nvcc_evidence: where it gives CUDA code to nvcc or torch.utils.cpp_extension, or has DeepSpeed do so, or None.
        hub_evidence: where it takes a token of Hugging Face, or None.
        input_evidence: where it may read standard input, or None. asks_evidence: where a usual run prompts.
        python_path: folders of the project that the job's own PYTHONPATH names, relative to it. arguments: as typed.
    """

    imports: tuple[str, ...] = ()
    optional_imports: tuple[str, ...] = ()
    likely_imports: tuple[str, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    tensorflow_1: str | None = None
    tensorflow_1_perhaps: str | None = None
    framework: str | None = None
    horovod: dict[str, str] = field(default_factory=dict)
    needs_horovod: tuple[str, ...] = ()
    horovod_elastic: str | None = None
    without_horovod_evidence: tuple[str | None, str | None] = (None, None)
    torchrun_evidence: str | None = None
    launcher_evidence: str | None = None
    one_process_evidence: str | None = None
    rank_option: str | None = None
    workers_evidence: str | None = None
    keras_backend: str | None = None
    keras_default: str | None = None
    compiler_evidence: str | None = None
    nvcc_evidence: str | None = None
    hub_evidence: str | None = None
    input_evidence: str | None = None
    asks_evidence: str | None = None
    python_path: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def needs_framework(self) -> bool:
        """Return whether it imports its framework, or what is built on it, at all; one behind ``try`` may be absent."""
        return any(self.framework in (name, BUILT_ON.get(name)) for name in self.imports)

    @property
    def ray_evidence(self) -> str | None:
        """Return where it imports Ray, or None."""
        where = self.where.get(RAY)
        return f"{where} {RAY}" if where else None

    @property
    def multi_gpu_evidence(self) -> str | None:
        """Return where it shows that it uses several GPUs, or None; for ``job.gpus.select``."""
        return self.torchrun_evidence or self.one_process_evidence or self.workers_evidence


def source_facts(job: Job) -> ScriptFacts:
    """Return the facts of a job's source. Raises TargetError."""
    ready = job.image.ready is not None
    return script_facts(job.source, job.project, any_python=ready, path=_own_path(job), folder=job.folder)


def why_useless(job: Job, facts: ScriptFacts) -> Iterator[TargetError]:
    """Yield why every run of the source would fail or do nothing."""
    if job.own is not None and (blocked := blocked_mount(job.own)):
        yield TargetError(blocked, run=f"${{EDITOR:-vi}} {job.own.file}   # mount it elsewhere")
    theirs = env_of(own_container_of(replicas(job.own.manifest)[0][0])) if job.own is not None else {}
    env = {**theirs, **job.env}
    for check in (each for each in facts.env_checks if each.name in env and not each.accepts(env[each.name])):
        set_right = f"{check.name}={check.values[0]}" if check.wanted else f"{check.name}=VALUE"
        file = f"${{EDITOR:-vi}} {job.own.file}   # {set_right}" if job.own else ""
        wrong = f"{check.where} fails unless {check}, and it is set to {shown(env[check.name])}"
        yield TargetError(wrong, cause="every run reaches this check", run=file or f"seatrial run … -e {set_right}")
    if facts.failing:
        sentences, fixes = zip(*facts.failing[:3], strict=True)
        cause = "every run reaches this line and fails there"
        yield TargetError("; ".join(sentences), cause=cause, run="\n".join(dict.fromkeys(fixes)))
    if facts.idle and job.source.kind in ("script", "module"):
        yield idle_error(f"{'-m ' * (job.source.kind == 'module')}{job.source.value}", job.project, job.target.args)


def _own_path(job: Job) -> tuple[str, ...]:
    """Return the folders of the project that the job's PYTHONPATH has, relative to the project."""
    folders = []
    for entry in filter(None, job.env.get("PYTHONPATH", "").split(":")):
        seen = posixpath.relpath(entry, CONTAINER_PROJECT) if entry.startswith("/") else ".."
        folder = Path(os.path.normpath(job.folder / entry if seen.startswith("..") else job.project / seen))
        if folder.is_relative_to(job.project) and is_folder(folder):
            folders.append(str(folder.relative_to(job.project)))
    return tuple(dict.fromkeys(folders))


@doing("reading the project's code")
def script_facts(
    target: Target,
    project: Path,
    *,
    calls: Sequence[str] = (),
    any_python: bool = False,
    path: tuple[str, ...] = (),
    folder: Path | None = None,
) -> ScriptFacts:
    """Read the target's source, and every module of the project that it imports, with ``ast``.

    An image, or a module that is not the project's, shows nothing: its facts are empty. Of a recipe its own file is
    read and the training library under it is not: that offers much which the recipe does not use.

    Args:
        calls: names in it that its importer calls: functions, classes, ``Class.method``.
        any_python: it runs in an image of the user's, whose Python may be another: what does not parse shows nothing.
        path: folders of the project, relative to it, that Python looks in besides: the job's PYTHONPATH.
        folder: the working directory, which ``python -m`` looks in first; the project by default.

    Raises TargetError: a syntax error in the script itself (file, line and text), an unreadable file, a notebook.
    """
    named = [project / each for each in path]
    first = [folder or project, *named]
    around = [folder / "src"] if folder else []
    start = _source(target, project, [*first, *around])
    is_packaged = start is None and target.kind == "module" and any(is_file(project / each) for each in PACKAGING)
    if is_packaged and (installed := folder_of(target.value, project)):  # lib/python, as after pip install -e .
        around.append(project / installed)
        start = _source(target, project, around)
    if start is None:
        _refuse_another_name(target, folder or project)
        return _elsewhere(target, path, any_python=any_python)
    roots = [*(first if target.kind == "module" else [start.parent, *named]), *around, project, project / "src"]
    inside = start.parent if target.kind == "recipe" else project
    places, before = (project, roots, inside, start), _packages(target, roots)
    reading = read_project(
        *places, calls=calls, arguments=target.args, any_python=any_python, folder=folder, before=before
    )
    _refuse_a_notebook(reading, project, any_python=any_python)
    if target.kind == "script" or (target.value == start.stem and start.is_relative_to(project)):  # -m train
        _refuse_a_part_of_a_package(reading, target, start, project)
    facts = replace(_facts(reading, target.args), python_path=path, arguments=target.args)
    if target.kind == "module" and find_module(target.value, first, main=True) is None:
        root = next(str(each.relative_to(project)) for each in roots if find_module(target.value, [each], main=True))
        facts = replace(facts, import_roots=tuple(dict.fromkeys((*facts.import_roots, root))))
    return facts


def source_digest(job: Job) -> str | None:
    """Return the SHA-256 of the project's file that the target starts, or None. Raises TargetError: unreadable."""
    if job.target.kind not in ("script", "module"):
        return None
    start = _source(job.target, job.project, [job.folder, *(job.project / each for each in _own_path(job))])
    if start is None or not start.is_relative_to(job.project):
        return None
    return hashlib.sha256(read_bytes(start, inside=job.project, refusal=TargetError)).hexdigest()


def _packages(target: Target, roots: list[Path]) -> list[Path]:
    """Return the files of the packages that ``-m package.module`` imports first, outer ones first."""
    parts = target.value.split(".") if target.kind == "module" else []
    found = (find_module(".".join(parts[:count]), roots) for count in range(1, len(parts) + 1))
    return [file for file in found if file is not None and file.name == "__init__.py"]


def _refuse_a_notebook(reading: ProjectReading, project: Path, *, any_python: bool) -> None:
    """Refuse a script that calls ``get_ipython``, which no script has, or imports what Colab alone has."""
    place, _, name = reading.certain_signs.get("notebook", "").partition(" ")
    path, _, line = place.rpartition(":")
    if name == "get_ipython" and "IPython.get_ipython" not in {**reading.needed, **reading.optional}:
        message = f"{place} calls get_ipython(), which exists only in a notebook"
        raise notebook_error(message, project / path, "/get_ipython()/d")
    of_colab = name.startswith("google.colab") and b"sys.modules" not in read_bytes(project / path, inside=project)
    if of_colab and not any_python and any(each.startswith(name) for each in reading.needed):
        run = f"${{EDITOR:-vi}} +{line} {as_typed(project / path)}   # delete it and its calls; for Drive: --data DIR"
        raise TargetError(f"{place} imports google.colab, which exists only in Colab", run=run)


def _refuse_a_part_of_a_package(reading: ProjectReading, target: Target, start: Path, project: Path) -> None:
    """Refuse relative imports in a file that is started in no package, unless it sets ``__package__``."""
    place, written, imported = reading.relative or ("", "", "")
    files = [start, project / place.rpartition(":")[0]]
    if not place or any(b"__package__" in read_bytes(each, inside=project) for each in files):
        return
    short = written if len(written) <= _LONGEST_NAME else written[: _LONGEST_NAME - 1] + "…"
    text = f"{place} imports from {short}, which only a module of a package can"
    module = module_name(str(start.relative_to(project)), project)
    above = len(written) - len(written.lstrip("."))
    if imported or above > module.count(".") or not module.replace(".", "").isidentifier():
        name, cause = short.lstrip(".…"), f"{imported} as a module of no package" if imported else None
        raise TargetError(text, cause=cause, run=f"in {place} write: {f'from {name} import' if name else 'import'} …")
    instead = (str(start), ["-m", module]) if target.kind == "script" else (str(start.with_suffix("")), [module])
    raise TargetError(text, cause=by_id("relative-import").cause, run=f"seatrial run -m {module}", instead=instead)


def _refuse_another_name(target: Target, folder: Path) -> None:
    """Refuse ``-m X.main`` in a folder that is package X under another name: its main.py has relative imports."""
    top, _, inner = target.value.partition(".") if target.kind == "module" else ("", "", "")
    file = find_module(inner, [folder]) if inner and not is_folder(folder / top) else None
    if file is None or not re.search(rb"(?m)^\s*from \.", read_bytes(file, inside=folder)):
        return
    raise TargetError(
        f"-m {target.value}: package {top} not found; {inner} in this folder, {folder.name}, uses relative imports",
        cause="Python finds a package by its folder's name, in the parent folder",
        run=f"mv ../{folder.name} ../{top} && cd ../{top} && seatrial run -C .. -m {target.value}",
    )


def _elsewhere(target: Target, path: tuple[str, ...], *, any_python: bool) -> ScriptFacts:
    """Return the facts of a module that is not where Python looks: a package has it, or another folder."""
    top = target.value.partition(".")[0]
    if target.kind != "module" or top in STANDARD_MODULES or any_python:
        return ScriptFacts(python_path=path)
    place = f"-m {target.value}"
    return ScriptFacts(imports=(top,), modules={target.value: place}, where={top: place}, python_path=path)


def _source(target: Target, project: Path, first: list[Path]) -> Path | None:
    if target.kind == "script":
        return project / target.value
    if target.kind == "recipe":
        return source_of(target.value)  # read only
    if target.kind == "module":
        return find_module(target.value, [*first, project, project / "src"], main=True)
    return None


def _facts(reading: ProjectReading, arguments: Sequence[str]) -> ScriptFacts:
    seen, certain = reading.signs, reading.certain_signs
    horovod = _taken_out(reading.optional, HOROVOD)
    needs_horovod = _taken_out(reading.needed, HOROVOD)
    horovod |= needs_horovod
    imports, optional = _foreign(reading.needed), _foreign(reading.optional)
    alone = torchrun, one_process = _how_it_starts(reading, imports)
    if horovod:  # in any of its forms it is one process per GPU
        part = telling_part(horovod)
        torchrun, one_process = f"{horovod[part]} {part}", None
    modules = {**reading.optional, **reading.needed}
    needed = {name: at for name, at in reading.needed.items() if name not in reading.fallbacks}
    of_2 = "tensorflow-2" in seen or any(name.startswith(("tensorflow.keras", "tensorflow.compat")) for name in modules)
    needs_launcher = None if "sets-ranks" in seen or one_process else certain.get("needs-ranks")
    return ScriptFacts(
        **{each.name: getattr(reading, each.name) for each in fields(Readings)},
        imports=tuple(sorted(imports)),
        optional_imports=tuple(sorted(set(optional) - set(imports))),
        likely_imports=tuple(sorted(set(_foreign(reading.likely)) - set(imports))),
        modules={
            **reading.likely,
            **needed,
            **_named(seen, certain, modules),
            **needed,  # imports first
            **reading.remote,
            **({"pytorch_lightning.1": seen["lightning-1"]} if "lightning-1" in seen else {}),
        },
        where={**optional, **imports},
        tensorflow_1=None if "tensorflow.compat.v1" in reading.needed else certain.get("tensorflow-1"),
        tensorflow_1_perhaps=None if of_2 else seen.get("tensorflow-1"),
        framework=_framework(imports) or _framework(optional) or ("torch" if f"{HOROVOD}.torch" in horovod else None),
        horovod=horovod,
        needs_horovod=tuple(needs_horovod),
        horovod_elastic=certain.get("horovod-elastic") if horovod else None,
        without_horovod_evidence=alone,
        torchrun_evidence=torchrun,
        launcher_evidence=needs_launcher,
        one_process_evidence=one_process,
        rank_option=_rank_option(seen),
        workers_evidence=seen.get("workers"),
        keras_backend=seen.get("keras-backend"),
        keras_default=seen.get("keras-default"),
        compiler_evidence=_compiles(reading, arguments),
        nvcc_evidence=seen.get("cuda-source" if any(name.startswith(_JIT) for name in modules) else "cpu-adam")
        or seen.get("nvcc"),
        hub_evidence=seen.get("hub-token"),
        input_evidence=seen.get("input"),
        asks_evidence=certain.get("input"),
    )


#: Module that compiles sources when a script runs. Source: docs.pytorch.org/docs/stable/cpp_extension.html.
_JIT = "torch.utils.cpp_extension"

#: Arguments, as one text, that turn torch.compile off.
_NOT_COMPILED = re.compile(
    r"(?<!\S)--((no|disable)[-_](torch[-_])?compile|(use[-_]|torch[-_]?)?compile[= ](false|0|no|none|off))(?!\S)", re.I
)


def _compiles(reading: ProjectReading, arguments: Sequence[str]) -> str | None:
    """Return where it compiles at run time, or None: torch.compile, unless arguments disable it or lack its flag."""
    seen, typed = reading.signs, " ".join(arguments)
    flag = seen.get("compile-flag", "").rpartition(" ")[2]
    lacks_flag = flag != "" and flag not in arguments and "torch-compile" not in reading.certain_signs
    off = lacks_flag or _NOT_COMPILED.search(typed)
    model = COMPILES.search(typed)
    return seen.get("compiler") or (model and model[0]) or (None if off else seen.get("torch-compile"))


def _how_it_starts(reading: ProjectReading, imports: dict[str, str]) -> tuple[str | None, str | None]:
    """Return evidence of one process per GPU, and of one process for all, of which there is one at most."""
    seen = reading.signs
    if "torchrun" in seen and "spawn" in seen:
        return None, seen["spawn"]
    if RAY in imports:  # under torchrun each rank would start a Ray of its own
        return None, f"{imports[RAY]} {RAY}"
    if "local-rank" in seen:
        return seen["local-rank"], None
    one_process = seen.get("one-process", "DataParallel")
    if _rank_option(seen) and "torchrun" in seen and one_process.endswith("DataParallel"):  # which is for no ranks
        return seen["torchrun"], None
    if "one-process" in seen:
        return None, seen["one-process"]
    torchrun = seen.get("torchrun") or reading.certain_signs.get("needs-ranks")
    return torchrun, None if torchrun else seen.get("perhaps-one-process")


def _rank_option(seen: dict[str, str]) -> str | None:
    """Return ``--local_rank``; None with subcommands: whose it is cannot be seen, and another's ends the script."""
    return None if "subcommands" in seen or "rank-option" not in seen else seen["rank-option"].rpartition(" ")[2]


def _taken_out(modules: dict[str, str], package: str) -> dict[str, str]:
    """Remove a package's modules from ``modules``, and return them."""
    return {name: modules.pop(name) for name in [*modules] if name.partition(".")[0] == package}


def telling_part(horovod: Mapping[str, str]) -> str:
    """Return the part of Horovod that shows best what a script wants."""
    parts = [name for name in horovod if name.count(".") == 1]
    return f"{HOROVOD}.torch" if f"{HOROVOD}.torch" in parts else next(iter([*parts, *horovod]))


def _foreign(modules: dict[str, str]) -> dict[str, str]:
    """Return top-level name → where, for what is neither standard nor ours."""
    found: dict[str, str] = {}
    for module, where in modules.items():
        top = module.partition(".")[0]
        if top not in STANDARD_MODULES and top not in ("", "seatrial"):
            found.setdefault(top, where)
    return found


def _named(seen: dict[str, str], certain: dict[str, str], modules: dict[str, str]) -> dict[str, str]:
    """Map names that imported packages may have removed to their places; known removals only if every run uses them."""
    named = ((sign.removeprefix(NAMED), where) for sign, where in seen.items() if sign.startswith(NAMED))
    names = {name: where for name, where in named if f"{SET_AGAIN}{name}" not in seen}
    sure = {name for name in names if f"{NAMED}{name}" in certain or name.startswith(("keras.", "tensorflow."))}
    kept = (name for name in names if name in sure or not (lost(name) or name.startswith(("cv2.", "matplotlib."))))
    known = {name.partition(".")[0] for name in modules}
    return {name: names[name] for name in kept if name.startswith(REPORT_TO) or name.partition(".")[0] in known}


def _framework(imports: dict[str, str]) -> str | None:
    found = [name for name in FRAMEWORKS if name in imports] + [BUILT_ON[each] for each in imports if each in BUILT_ON]
    return next(iter(found), None)
