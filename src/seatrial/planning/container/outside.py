"""Files that a script names outside of the project: those of this machine that the container would not have, and those
that it writes where nothing is kept.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from seatrial.backends.containers.mounts import inside
from seatrial.errors import UsageError
from seatrial.job.host_paths import HostPath, host_paths, mounted, own_folder
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_HOME, CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.model import DataMount, Job
from seatrial.job.plan import Choice, Mount
from seatrial.job.reading.constants import ANY
from seatrial.job.reading.file_calls import Write
from seatrial.job.reading.signs import WINDOWS, of_a_machine
from seatrial.job.script import ScriptFacts
from seatrial.system.text import first_of

#: Folders that images have, too: a path below them is not this machine's.
IN_IMAGES = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")

#: Folders of every Debian for additions of a machine; and those that hold several things.
_EMPTY = ("/home", "/media", "/mnt", "/opt", "/root", "/srv")
_SHARED = (*_EMPTY, "/app", "/content", "/kaggle")

#: Folders that every container can write to: the project, HOME, seatrial's and the kernel's.
WRITABLE = (CONTAINER_PROJECT, CONTAINER_HOME, "/dev", "/proc", "/seatrial", "/sys", "/tmp")

#: Images of which it is known that they have no volume of their own, which would be writable.
_WITHOUT_VOLUMES = ("python", "debian", "ubuntu", "nvidia/cuda", "pytorch/pytorch", "tensorflow/tensorflow")

#: Targets whose arguments name files of this machine; an image's program may name its own files.
_OF_PYTHON = ("script", "module")

#: A project of many scripts has many; a few show what is wrong.
_MOST_SHOWN = 3


def with_models(job: Job, script: ScriptFacts) -> tuple[Job, tuple[Choice, ...]]:
    """Mount ./models at /models, where the script writes there, or reads there and ./models is a folder."""
    if job.models is not None or any(inside(CONTAINER_MODELS, mount.target) for mount in job.mounts):
        return job, ()
    folder = job.project / "models"
    reasons = [str(write) for write in script.writes if inside(_in_container(job, write.path), CONTAINER_MODELS)]
    if os.path.isdir(folder):  # noqa: PTH112  # never raises
        reads = [(path, where) for path, where in script.paths.items() if inside(path, CONTAINER_MODELS)]
        reasons += [f"{where} names {path}" for path, where in reads]
    if not reasons:
        return job, ()
    choice = Choice(what=CONTAINER_MODELS, value="./models", reason=f"{reasons[0]}; another folder: --models DIR")
    return job.changed(models=DataMount(source=folder, read_only=False)), (choice,)


def with_host_paths(job: Job, script: ScriptFacts, *, build: bool) -> tuple[Job, tuple[Choice, ...], tuple[str, ...]]:
    """Mount what the arguments name on this machine where they name it; return the job, choices and warnings.

    ``build``: the image is ours, and has none of these paths. Raises UsageError: results would be outside any mount.
    """
    mounts: list[Mount] = []
    warnings, more = list[str](), list[str]()
    kept = [each for each in (*IN_IMAGES, *WRITABLE, *mounted(job)) if each not in ("/tmp", CONTAINER_HOME)]
    named = host_paths(job) if job.target.kind in _OF_PYTHON else ()
    choices = []
    for path in sorted(named, key=lambda each: each.target.count("/")):
        own = path.source.is_relative_to(job.project)
        if path.target == "/" or any(inside(path.target, each) for each in kept):
            continue
        for_scripts = inside(path.target, "/tmp") or inside(path.target, CONTAINER_HOME)
        mount = shlex.quote(f"{path.source}:{path.target}")
        if for_scripts and not own and path.written and path.is_there and path.typed and build:
            warnings.append(f"{path} is a folder for results outside the project; to write there: --mount {mount}")
        if for_scripts and not own and (path.written or not path.is_there):
            continue
        if path.written and not own and path.typed and build and not job.writable:
            problem = f"{path} is a folder for results outside the project: the container cannot write there"
            run = f"{_making([str(path.source)], job)}seatrial run … --mount {mount}"
            raise UsageError(problem, cause="The container writes outside the project only to mounted folders", run=run)
        if not path.is_there:
            by_file = not path.written and of_a_machine(path.text)
            is_read = any(
                inside(_in_container(job, each.path), path.target)
                or path.where.startswith(f"{each.path}:")
                or path.source == Path(os.path.normpath(job.folder / each.path))
                for each in script.reads
            )
            if build and (path.typed or by_file) and not is_read and path.where not in script.outputs:
                shown = path.typed or len(warnings) < _MOST_SHOWN
                (warnings if shown else more).append(path.absence if shown else str(path))
            continue
        into = [each for each in script.writes if inside(_in_container(job, each.path), path.target)]
        if not own and path.typed and build and into:
            mount = shlex.join(["--mount", f"{path.source}:{path.target}"])
            for write in (each for each in into if each.certain and not _is_made(job, each, path)):
                raise UsageError(f"{write}, and {path} is mounted read-only", run=f"seatrial run … {mount}")
            warnings.append(f"{into[0]}, and {path} is mounted read-only; to write there: {mount}")
        mounts.append(Mount(source=path.source, target=path.target, read_only=not own))
        kept.append(path.target)
        value = f"{path.source} at {path.target}, {'writable, as it is in the project' if own else 'read-only'}"
        choices.append(Choice(what="mount", value=value, reason=f"{path.where} names it"))
    warnings += [f"not on this machine either: {first_of(more, _MOST_SHOWN)}"] * bool(more)
    return job.changed(mounts=(*job.mounts, *mounts)) if mounts else job, tuple(choices), tuple(warnings)


def _is_made(job: Job, write: Write, path: HostPath) -> bool:
    """Return whether a write only creates a folder that exists, which does no harm."""
    return write.folder and (path.source / posixpath.relpath(_in_container(job, write.path), path.target)).is_dir()


def refuse_lost_writes(job: Job, script: ScriptFacts, *, build: bool) -> None:
    """Refuse a script certain to write where its container cannot. Raises UsageError. ``build``: the image is ours."""
    name = job.image.base.partition("@")[0].partition(":")[0]
    if job.writable or not build or not any(name == each or name.endswith(f"/{each}") for each in _WITHOUT_VOLUMES):
        return
    certain = {mount: each for mount, each in _lost_writes(job, script) if each.certain and not _may_succeed(job, each)}
    if not certain:
        return
    write = next(iter(certain.values()))
    options = " ".join(f"--mount {shlex.quote(mount)}" for mount in (*map(str, job.mounts), *certain))
    problem = f"{write}, a folder that the container cannot write to: the run would fail there"
    cause = f"The container can write to the project, {CONTAINER_MODELS}, HOME, /tmp and mounted folders"
    raise UsageError(problem, cause=cause, run=f"{_making(certain, job)}seatrial run … {options}")


def _making(mounts: Iterable[str], job: Job) -> str:
    """Return ``mkdir -p ../logs && `` for the missing folders outside of the project, which a mount requires."""
    sources = (mount.partition(":")[0] for mount in mounts)
    missing = [each for each in sources if each.startswith(("../", "/")) and not (job.project / each).exists()]
    return f"mkdir -p {shlex.join(missing)} && " if missing else ""


def warn_of_lost_writes(job: Job, script: ScriptFacts) -> Iterator[str]:
    """Yield a sentence for each folder that the script may write to, and whose files would be lost or not be made."""
    into = [each for each in script.writes if inside(_in_container(job, each.path), CONTAINER_DATA)]
    if into and job.data is not None and job.data.read_only:
        yield f"{into[0]}, and {CONTAINER_DATA} is read-only without :rw: --data DIR:rw"
    lost: dict[str, Write] = {}
    for mount, write in _lost_writes(job, script):
        lost.setdefault(mount, write)
    for mount, write in [*lost.items()][:_MOST_SHOWN]:
        option = f"-- {write.option} DIR, or " if write.option else ""
        made = _making([mount], job).replace(" && ", ", then ")
        way = own_folder(job, write.path) or f"{option}{made}--mount {shlex.quote(mount)}"
        yield f"{write}, outside every mount; to keep it on this machine: {way}"
    roots = (each for each in script.writes if posixpath.dirname(_in_container(job, each.path)) == "/")
    roots = (each for each in roots if each.certain or not _may_succeed(job, each))
    for write in [each for each in roots if not (job.writable or each.folder)][:_MOST_SHOWN]:
        start = own_folder(job, write.path) or "add --writable"
        yield f"{write}, a file at the container's root, which is read-only: edit {write.where}, or {start}"
    for write in [each for each in script.writes if WINDOWS.match(each.path)][:_MOST_SHOWN]:
        yield f"{write}, a Windows path, which Linux reads as a name in the working directory: edit {write.where}"


def made_by_writes(job: Job, script: ScriptFacts) -> frozenset[str]:
    """Return the targets of the user's mounts that the script writes to: missing folders in the project are made."""
    paths = [_in_container(job, write.path) for write in script.writes]
    return frozenset(mount.target for mount in job.mounts if any(inside(path, mount.target) for path in paths))


def _lost_writes(job: Job, script: ScriptFacts) -> Iterator[tuple[str, Write]]:
    """Yield (``SOURCE:TARGET`` of the mount that would keep it, write) for each write to a folder that is not kept."""
    kept = [*WRITABLE, *mounted(job)]
    made = [_in_container(job, write.path).partition(ANY) for write in script.writes if write.folder]
    for write in script.writes:
        path = _in_container(job, write.path)
        parent = posixpath.dirname(path)
        is_ready = write.folder or any(parent.startswith(at) if rest else inside(at, parent) for at, rest, _ in made)
        folder = _mount_point(path, is_folder=write.folder, is_ready=is_ready)
        is_made = write.folder and any(inside(each, path) for each in kept)  # by the engine, above a mount
        if folder is not None and not is_made and not any(inside(path, each) for each in kept):
            copies = any(each.copies and inside(_in_container(job, each.path), folder) for each in script.writes)
            root = ".." if copies else "."  # the project is not copied into itself
            yield f"{_source(job, write, folder, root)}:{folder}", write


def _in_container(job: Job, path: str) -> str:
    return posixpath.normpath(posixpath.join(job.folder_inside, path))


def _next_to_its_script(job: Job, path: str, where: str) -> Path:
    """Return a relative path as seen from the folder of the file that names it, ``train.py:3``."""
    return Path(os.path.normpath(job.project / Path(where.rpartition(":")[0]).parent / path))


def _may_succeed(job: Job, write: Write) -> bool:
    """Return whether a write lies in a folder that images have, or, from the script's own folder, in the project."""
    if write.path.startswith("../") and _next_to_its_script(job, write.path, write.where).is_relative_to(job.project):
        return True
    path = _in_container(job, write.path)
    return posixpath.dirname(path) in _EMPTY or any(inside(path, each) for each in (*IN_IMAGES, "/root", "/home"))


def _mount_point(path: str, *, is_folder: bool, is_ready: bool) -> str | None:
    """Return ``/output`` of ``/output/epoch*/model.pt``; the file's own folder if the script makes none.

    ``is_ready``: it makes one. None where that would cover a folder of the image: of ``/a`` and ``/opt/a``.
    """
    parts = path.strip("/").split("/")
    known = next((number for number, part in enumerate(parts) if ANY in part), len(parts) - (not is_folder))
    top = f"/{parts[0]}"
    depth = known if top in IN_IMAGES or not is_ready else min(known, 2 if top in _SHARED else 1)
    folder = "/" + "/".join(parts[:depth])
    return None if folder in ("/", *_EMPTY, *IN_IMAGES) else folder


def _source(job: Job, write: Write, folder: str, root: str) -> str:
    """Return the same folder of this machine where it has one; else one in ``root``, the project or its parent."""
    if write.path.startswith("../"):
        return os.path.relpath(posixpath.normpath(folder), job.folder_inside)
    if os.path.isdir(folder) and not any(inside(folder, each) for each in IN_IMAGES):  # noqa: PTH112  # never raises
        return folder
    return f"{root}/{posixpath.basename(folder)}"


def warn_of_outside(job: Job, script: ScriptFacts) -> Iterator[str]:
    """Yield a sentence for each path outside of the project that is there now and will not be in the container."""
    found: dict[str, tuple[str, str]] = {}
    written = {write.path for write in script.writes}
    for path, where in script.paths.items():
        if path not in written and (mount := _missing(job, path, where)) is not None:
            found.setdefault(mount, (path, where))
    targets = {mount: mount.rpartition(":")[2] for mount in found}
    outermost = [
        mount
        for mount, target in targets.items()
        if not any(inside(target, other) for other in targets.values() if other != target)  # which brings it along
    ]
    for mount in outermost[:_MOST_SHOWN]:
        path, where = found[mount]
        way = f"to mount it: --mount {shlex.quote(mount)}"
        yield f"{where} names {path}, which is outside the project and not in the container; {way}"


def _missing(job: Job, path: str, where: str) -> str | None:
    """Return ``SOURCE:TARGET`` of the mount that would bring it, or None where nothing is missing."""
    target = _in_container(job, path)
    source = Path(os.path.normpath(job.folder / path))  # resolve() would change the names
    neighbour = _next_to_its_script(job, path, where)
    if source.is_relative_to(job.project) or not inside(job.folder_inside, CONTAINER_PROJECT) or target == "/":
        return None
    if neighbour.is_relative_to(job.project) and os.path.exists(neighbour):  # noqa: PTH110
        return None
    if any(inside(target, each) for each in mounted(job)) or not os.path.exists(source):  # noqa: PTH110  # never raises
        return None
    if path.startswith("/"):
        return None if any(inside(target, each) for each in IN_IMAGES) else f"{path}:{path}"
    ups, _, down = path.rpartition("../")
    top = f"{ups}../{down.partition('/')[0]}"
    return f"{top}:{_in_container(job, top)}"
