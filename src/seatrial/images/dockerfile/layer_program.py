"""Makes a layer of packages: run inside a build, on the standard library alone. Nothing of seatrial is in there.

What pip installs differs from one build to the next in its times alone, and in the bytecode that holds them. With times
that never change, a layer is the same bytes wherever it is built, so that engines and registries keep it once.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

VENV = "/opt/venv"

#: In the image: names and versions of the framework layer, as constraints for all that is installed above it.
FRAMEWORK_LIST = f"{VENV}/framework.txt"

#: Packages of the framework layer, by normalised name: frameworks and what their wheels need of CUDA. All of them are
#: large, have no source distribution that anybody compiles, and follow from the framework's release and build alone.
FRAMEWORK = re.compile(
    r"(torch|pytorch-triton.*|triton|tensorflow|tensorflow-cpu|jax|jaxlib|jax-cuda.*|nvidia-.*|cuda-.*)$"
)

#: 1980-01-02, which zip files can hold in every time zone.
EPOCH_S = 315619200

#: Folders outside the environment that an installation leaves with another time.
_TOUCHED = ("/opt", "/root", "/tmp")


def main() -> None:
    """argv: what to do, and its arguments."""
    doing, *arguments = sys.argv[1:]
    if doing == "standard-library":
        compile_standard_library()
    elif doing == "others":
        sys.stdout.write(" ".join(others()))
    elif doing == "freeze":
        Path(FRAMEWORK_LIST).write_text("".join(f"{line}\n" for line in frozen()), encoding="utf-8")
    elif doing == "keep":
        Path(FRAMEWORK_LIST).write_text("".join(f"{line}\n" for line in kept(arguments)), encoding="utf-8")
    elif doing == "finish":
        finish(VENV)
        for folder in _TOUCHED:
            _set_time(folder)
    elif doing == "mirror":
        mirror(Path(arguments[0]), Path(VENV))
    else:
        raise SystemExit(f"layer: {doing} is not known")


def compile_standard_library() -> None:
    """Bytecode of Python's own library where the base has none: no run could write it."""
    root = sysconfig.get_path("stdlib")
    before = {path: os.lstat(path).st_mtime_ns for path in _below(root)}
    left_out = re.compile(r"(site|dist)-packages|/tests?/")
    _compile([path for path in before if path.endswith(".py") and not left_out.search(path)])
    for path in list(_below(root)):
        if before.get(path) != os.lstat(path).st_mtime_ns:
            _set_time(path)


def others() -> list[str]:
    """Return the packages that this step has installed with the framework, as its requirements."""
    required = [(name, info) for name, (_, info) in _installed().items() if not FRAMEWORK.match(name)]
    return sorted(name for name, info in required if int(os.lstat(info).st_mtime) != EPOCH_S)


def frozen() -> list[str]:
    """``name==version`` of each package of the framework layer."""
    return sorted(f"{name}=={version}" for name, (version, _) in _installed().items() if FRAMEWORK.match(name))


def kept(names: list[str]) -> list[str]:
    """``name==version`` of each of these packages that this Python finds, which a base image may bring."""
    from importlib import metadata  # here, as compileall and others: a plan reads FRAMEWORK and needs none

    versions: dict[str, str] = {}
    for package in metadata.distributions():
        versions.setdefault(_normalised(package.metadata["Name"] or ""), package.version)
    return [f"{name}=={versions[name]}" for name in names if name in versions]


def finish(root: str) -> None:
    """Compile what is new below ``root``, and give all of it the same time. What has that already is left alone."""
    for path in _new_below(root):
        _set_time(path)  # before: bytecode holds the time of its source
        if path.endswith(".pyc"):
            os.unlink(path)  # compiled from a source of another time
    _compile([path for path in _below(root) if path.endswith(".py") and not _has_bytecode(path)])
    for path in list(_new_below(root)):
        _set_time(path)


def mirror(source: Path, target: Path) -> None:
    """Make ``target`` equal to ``source``, writing only what differs: a layer holds nothing else.

    Files of the framework layer are equal: nothing above it may change them.
    """
    same = {os.path.relpath(path, str(target)) for path in framework_files(target)}
    wanted = {os.path.relpath(path, str(source)) for path in _below(str(source))}
    for path in sorted(_below(str(target)), reverse=True):  # files before their folders
        if os.path.relpath(path, str(target)) not in wanted:
            _remove(path)
    for name in sorted(wanted - same):
        _copy(str(source / name), str(target / name))
    finish(str(target))


def framework_files(root: Path) -> set[str]:
    """Paths of all files that the packages of the framework layer list as theirs, below this environment."""
    from importlib import metadata

    try:
        listed = {line.partition("==")[0] for line in (root / "framework.txt").read_text("utf-8").split()}
    except FileNotFoundError:
        return set()
    found = set()
    for site in root.glob("lib/python3*/site-packages"):
        for package in metadata.distributions(path=[str(site)]):
            if _normalised(package.metadata["Name"]) in listed:
                found |= {os.path.normpath(str(site / str(file))) for file in package.files or ()}
    return found


def _installed() -> dict[str, tuple[str, str]]:
    """Name → version and the folder of its metadata."""
    from importlib import metadata

    found = {}
    for site in Path(VENV).glob("lib/python3*/site-packages"):
        for info in sorted(site.glob("*.dist-info")):
            package = metadata.Distribution.at(info)
            found[_normalised(package.metadata["Name"])] = package.version, str(info)
    return found


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _compile(paths: list[str]) -> None:
    """In processes that begin alike and take fixed shares: what one has compiled before shows in what it writes."""
    shares = [sorted(paths)[at : at + 200] for at in range(0, len(paths), 200)]
    for share in shares if len(shares) < 2 else ():
        _compile_share(share)
    if len(shares) > 1:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(os.cpu_count()) as processes:
            list(processes.map(_compile_share, shares))


def _compile_share(paths: list[str]) -> None:
    import compileall

    for path in paths:
        compileall.compile_file(path, quiet=2)  # a file that does not compile stops nothing


def _has_bytecode(path: str) -> bool:
    folder, name = os.path.split(path)
    return os.path.exists(os.path.join(folder, "__pycache__", f"{name[:-3]}.{sys.implementation.cache_tag}.pyc"))


def _below(root: str) -> Iterator[str]:
    """Every file, link and folder, the root among them; folders that are links are not entered."""
    yield root
    for folder, folders, files in os.walk(root):
        yield from (os.path.join(folder, name) for name in (*sorted(folders), *sorted(files)))


def _new_below(root: str) -> list[str]:
    return [path for path in _below(root) if int(os.lstat(path).st_mtime) != EPOCH_S]


def _set_time(path: str) -> None:
    os.utime(path, (EPOCH_S, EPOCH_S), follow_symlinks=False)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source) and not os.path.islink(source):
        if os.path.islink(target) or os.path.isfile(target):
            os.unlink(target)
        os.makedirs(target, exist_ok=True)
        return
    if os.path.lexists(target):
        if os.path.islink(source) and os.path.islink(target) and os.readlink(source) == os.readlink(target):
            return
        links = os.path.islink(source) or os.path.islink(target)
        if not links and os.path.isfile(target) and filecmp.cmp(source, target, shallow=False):
            return
        _remove(target)
    shutil.copy2(source, target, follow_symlinks=False)


if __name__ == "__main__":
    main()
