"""Write seatrial.toml for an existing project, and make new projects."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import DiskError, UsageError
from seatrial.images.base import needed_flavour
from seatrial.images.plan import image_needs
from seatrial.job.model import ImageOptions, Job
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.job.startable import scripts, what_is_here
from seatrial.job.target import resolve_target
from seatrial.system import nofollow
from seatrial.system.files import in_the_way
from seatrial.system.text import as_typed, first_of

FILE = "seatrial.toml"
#: Names that a training script usually has, the likeliest first.
_USUAL = ("train.py", "main.py", "run.py", "finetune.py", "fine_tune.py", "pretrain.py")
#: Folder of a new project's files, with ``.txt`` behind their names: no tool takes them for files of this project.
STARTER = "starter"
#: Rows of its data: enough for a network of a thousand weights, and read in a moment.
POINTS = 600
#: A name that fits a run, a Compose project and an image.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def project_file(project: Path, script: str | None = None) -> str:
    """Return the text of seatrial.toml. Raises UsageError where no script is there to start from."""
    target = resolve_target([script or find_script(project)], None, None, project, ())
    job = Job(project=project, target=target)
    facts = script_facts(job.target, project)
    needs = image_needs(job, facts)
    flavour, why = needed_flavour(ImageOptions(), project, needs)
    reasons = [
        f"# {needs.reason}: {', '.join(needs.requirements.lines) or 'none'}",
        f"# framework: {facts.framework or 'none'}, from the imports {', '.join(facts.imports) or '(none)'}",
    ]
    lines = [
        f"# Found in {project.name} by `seatrial init`. Every key: seatrial init --schema",
        f"target = {json.dumps(target.value, ensure_ascii=False)}",  # what JSON escapes in a string, TOML reads
        *_gpus(facts),
    ]
    lines += [*_data(project), "", "[image]", *reasons]
    if flavour is not None:
        lines.append(f'flavour = "{flavour}"            # {why}')
    else:
        lines.append(f"# base: slim Python; {why}")
    if facts.compiler_evidence:
        lines.append(f"# a C++ compiler is added: {facts.compiler_evidence}")
    lines += ['slim = "none"                  # files, unused, arch: seatrial build --explain has the savings', ""]
    return "\n".join(lines)


def write_project_file(project: Path, script: str | None = None) -> Path:
    """Write seatrial.toml and return its path. Raises UsageError where there is one already."""
    if (project / FILE).exists():
        raise UsageError(f"{FILE} already exists", run=f"${{EDITOR:-vi}} {FILE}")
    return nofollow.write_inside(Path(os.path.realpath(project)), FILE, data=project_file(project, script).encode())


def _gpus(facts: ScriptFacts) -> Sequence[str]:
    if facts.torchrun_evidence:
        return [f'gpus = "all"                   # one process per GPU: {facts.torchrun_evidence}']
    if facts.one_process_evidence:
        return [f'gpus = "all"                   # one process for all: {facts.one_process_evidence}']
    return ['gpus = "auto"                  # one GPU, or the CPU where there is none']


def _data(project: Path) -> Sequence[str]:
    """Return the line for data, behind a # for an empty folder, which each run refuses; [] without a folder."""
    folders = [name for name in ("data", "dataset", "datasets") if (project / name).is_dir()]
    if full := next((name for name in folders if any((project / name).iterdir())), None):
        return [f'data = "./{full}"                # the folder exists; mounted read-only at /data']
    if folders:
        return [f'# data = "./{folders[0]}"              # the folder is empty: fill it, then take the first # away']
    return []


def find_script(project: Path) -> str:
    """Find the script that trains. Raises UsageError where that is not plain."""
    if usual := next((name for name in _USUAL if (project / name).is_file()), None):
        return usual
    scripts = sorted(path.name for path in project.glob("*.py") if path.name != "setup.py")
    scripts = scripts or _inner_scripts(project)
    if len(scripts) == 1:
        return scripts[0]
    if scripts:
        found = f"There are {first_of(scripts, 8)}"
        run = f"seatrial init {shlex.quote(next((name for name in scripts if 'train' in name), scripts[0]))}"
    elif here := what_is_here(project):
        what, before, words = here
        found, run = f"Here {what}", f"{before}seatrial {'run' if words.startswith('-m ') else 'init'} {words}"
    else:
        found, run = "No training script found", "find . -name '*.py' -not -path '*/.*'"
    raise UsageError(f"Which script trains? {found}", run=run)


def _inner_scripts(project: Path) -> list[str]:
    """Return scripts up to two folders down that are named as ones that train are; the nearest first."""
    inner = [path for path in map(Path, scripts(project)) if path.parts[1:] and "train" in path.name]
    plain = [path for path in inner if not any(part.startswith(("_", "test")) for part in path.parts)]
    plain.sort(key=lambda path: (path.name != "train.py", len(path.parts), path))
    return [path.as_posix() for path in plain]


def new_project(folder: Path) -> list[str]:
    """Make the project, whole or not at all; its files. Raises UsageError: it is not empty, or misnamed; DiskError."""
    name = folder.name
    if not _NAME.fullmatch(name):
        problem = f"{'An empty name' if folder == Path() else repr(str(folder))} does not name a new project"
        cause = "its folder and its image get the name: letters, digits, . _ -, at most 63"
        raise UsageError(problem, cause=cause, run="seatrial init my-project")
    if not folder.parent.is_dir():
        raise UsageError(f"Folder not found: {folder.parent}", run=f"mkdir -p {as_typed(folder.parent)}")
    packaged, contents = Path(__file__).parent / STARTER, {}
    for path in sorted(packaged.rglob("*.txt")):
        made_as = path.relative_to(packaged).as_posix().removesuffix(".txt")
        text = path.read_text(encoding="utf-8").replace("NAME", name)
        contents[".gitignore" if made_as == "gitignore" else made_as] = text
    contents["data/points.csv"] = two_moons()
    _refuse_what_is_there(folder)
    try:
        nofollow.write_tree(folder.parent, name, {place: text.encode() for place, text in contents.items()})
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # it came meanwhile
            _refuse_what_is_there(folder)
        raise DiskError(f"Cannot create {folder}: {error.strerror}", run=in_the_way(folder.parent, error)) from error
    return sorted(contents)


def _refuse_what_is_there(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        return
    if os.path.lexists(folder):
        what = "The folder {} is not empty" if folder.is_dir() else "There is a file {} already"
        cause = "init NAME makes a new folder; in an existing project, init without a name writes seatrial.toml"
        run = f"cd {as_typed(folder)} && seatrial init" if folder.is_dir() else "seatrial init ANOTHER-NAME"
        raise UsageError(f"{what.format(folder)}: nothing was written", cause=cause, run=run)


def two_moons() -> str:
    """Return a CSV of two interlocking half circles: no line divides them, and a small network does."""
    chance = random.Random(0)
    rows = ["x,y,label"]
    for number in range(POINTS):
        angle, label = math.pi * chance.random(), number % 2
        x, y = (math.cos(angle), math.sin(angle)) if label == 0 else (1 - math.cos(angle), 0.5 - math.sin(angle))
        rows.append(f"{x + chance.gauss(0, 0.1):.4f},{y + chance.gauss(0, 0.1):.4f},{label}")
    return "\n".join(rows) + "\n"
