"""What a plan says of imports that will find nothing in the image, and of packages that are guesses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from seatrial.images.needs import Needs, is_listed
from seatrial.images.requirements.packages import ImportedPackages
from seatrial.job.reading.modules import is_folder
from seatrial.job.script import ScriptFacts


def guessed_package(script: ScriptFacts, guess: tuple[str, str]) -> str:
    name, package = guess
    where = script.where.get(name, "the target")
    return f"{package} is a guess: {where} imports {name}, and seatrial does not know its package"


def the_project_itself(script: ScriptFacts, name: str) -> str:
    """For a script that was started inside of the package that it imports."""
    file, _, line = script.where.get(name, "").rpartition(":")
    where = f"{file}:{line}" if file else "the target"
    module = f"-m {name}.{file.removesuffix('.py').replace('/', '.')}" if file else "…"
    return (
        f"{where} imports {name}, which is this folder: Python finds it from the folder above alone; "
        f"seatrial run -C .. {module}"
    )


def elsewhere_in_the_project(script: ScriptFacts, own: dict[str, Path]) -> Iterator[str]:
    """Modules of the project's own that the target will not find."""
    if own:
        lies = [
            f"{script.where.get(name, 'the target')} imports {name}, which lies in the project's {folder}/"
            for name, folder in own.items()
        ]
        them = "that folder" if len(folders := dict.fromkeys(map(str, own.values()))) == 1 else "these folders"
        yield (
            f"{'; '.join(lies)}: unless the script adds {them} to sys.path, run with "
            f"-e PYTHONPATH={':'.join([*script.python_path, *folders])}"
        )
    for name, where in script.missing.items():
        yield (
            f"{where} imports {name}, which is not in the project: if installing the project writes or compiles it, do "
            "that first with pip install -e ."
        )


def beside_the_project(script: ScriptFacts, beside: dict[str, Path | None], project: Path) -> Iterator[str]:
    """Modules of folders that the project names and that are not mounted with it."""
    for name, folder in beside.items():
        where, way = script.where.get(name, "the target"), "that folder is not there"
        if folder is not None and is_folder(folder):
            both = Path(os.path.commonpath((folder, project)))
            paths = (each / "src" if is_folder(each / "src") else each for each in (folder, project))
            python_path = ":".join(os.path.relpath(each, both) for each in paths)
            way = f"run where both are: seatrial run -C {os.path.relpath(both, project)} -e PYTHONPATH={python_path} …"
        yield (
            f"{where} imports {name}, which pyproject.toml takes from a folder outside of the project, and not from an "
            f"index: {way}"
        )


def in_empty_submodules(script: ScriptFacts, lacking: list[str], absent: list[str]) -> Iterator[str]:
    """Modules that may lie in what git has not fetched: nothing is guessed in their place."""
    for name in lacking:
        yield (
            f"{script.where.get(name, 'the target')} imports {name}, which is not here, and the git submodule "
            f"{absent[0]} is empty: git submodule update --init --recursive"
        )


def not_installed(needs: Needs, packages: ImportedPackages, script: ScriptFacts) -> Iterator[str]:
    """Imports for which nothing is installed, each with what to do."""
    guesses = {} if needs.source == "the imports" else packages.guessed
    for name, ask in {**packages.elsewhere, **guesses}.items():
        if not is_listed(needs.requirements, name, ask):
            why, remedy = f"{needs.source} does not list it", f"if {ask} is its package (a guess), add it"
            if name in packages.elsewhere:
                why, remedy = f"on the package index, {name} is another project, source alone or missing", "add it"
            remedy += f' in seatrial.toml: [image] requirements = ["{ask}"]'
            yield f"{script.where.get(name, 'the target')} imports {name}, which is not installed: {why}; {remedy}"
    for name in packages.unknown:
        yield f"{script.where.get(name, 'the target')} imports {name}: not in the project, and no package is installed"
