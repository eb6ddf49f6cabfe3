"""Compare a wheel's files with the modules that the project imports or starts."""

from __future__ import annotations

import re
import shlex

from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs
from seatrial.images.resolve.answers import Lock, ResolveRequest
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import Job
from seatrial.system.project_files import is_there


def wrong_package(resolver: UvResolver, request: ResolveRequest, lock: Lock, needs: Needs) -> str | None:
    """Return a guessed package whose wheel lacks the imported module; None if all have it."""
    modules = {canonicalize_name(each): each for each in needs.imports}
    for package in (each for each in lock.packages if each.name in needs.guessed and each.name in modules):
        files = resolver.files(request, package)
        if files and not any(
            re.match(rf"{modules[canonicalize_name(package.name)]}(?:[/.]|$)", each) for each in files
        ):
            return package.name
    return None


def refuse_unstartable(resolver: UvResolver, request: ResolveRequest, lock: Lock, job: Job) -> None:
    """Raise ConfigError for ``-m PACKAGE`` if the release has no module that Python can start."""
    name = job.target.value
    top, path = name.partition(".")[0], name.replace(".", "/")
    ours = any(is_there(root / top) for root in (job.folder, job.project, job.project / "src"))
    package = next((each for each in lock.packages if canonicalize_name(top) == each.name), None)
    if job.target.kind != "module" or ours or package is None:
        return
    files = resolver.files(request, package)
    if f"{top}/__init__.py" not in files or not files.isdisjoint((f"{path}.py", f"{path}/__main__.py")):
        return
    commands = [each.removeprefix("bin/") for each in sorted(files) if each.startswith("bin/")]
    started = commands[-1] if commands else package.name
    loads = f'[each] = entry_points(group="console_scripts", name="{started}"); each.load()()'
    run = f"seatrial run {shlex.join([f'run_{started}.py', *job.target.args])}"
    raise ConfigError(
        f"-m {name}: {package.name} {package.version} has no {path}.py and no {path}/__main__.py to start",
        cause=f"its commands are {', '.join(commands)}" if commands else None,
        run=f"echo 'from importlib.metadata import entry_points; {loads}' > run_{started}.py && {run}",
    )
