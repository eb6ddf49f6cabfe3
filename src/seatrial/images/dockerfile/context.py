"""Add to a build what is not a package: our wheel, the project's code, labels of its origin."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import seatrial
from seatrial.errors import ConfigError, UsageError
from seatrial.images.dockerfile.render import EXTENSIONS, EXTENSIONS_AT, ORDINARY_USER, VENV_PYTHON
from seatrial.images.requirements.imports import packages_of_imports
from seatrial.images.requirements.pip_format import Extension, Needs, canonical_name
from seatrial.images.resolve.framework import PACKAGES
from seatrial.job.in_container import CONTAINER_PROJECT
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.units import format_bytes
from seatrial.system import checkout
from seatrial.system.agent_archive import zip_bytes
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.nofollow import files_below
from seatrial.system.project_files import read_bytes
from seatrial.system.text import as_typed, regex, without_login

WHEEL_NAME = f"seatrial-{seatrial.__version__}-py3-none-any.whl"

_PACKAGE = Path(seatrial.__file__).parent
_DIST_INFO = f"seatrial-{seatrial.__version__}.dist-info"
#: Folders of the training library and its imports.
_FOLDERS = ("events", "export", "models", "recipes", "serve", "train")
_FILES = (
    "__init__.py",
    "common/__init__.py",
    "common/gpu_peaks.json",
    "common/gpu_peaks.py",
    "common/paired.py",
    "web/__init__.py",
    "web/guard.py",
    "recipe_names.py",
)


def wheel_bytes() -> bytes:
    """Build the wheel for ``pip install --no-deps``. It declares no dependencies: the image's recipe names them."""
    contents = {f"seatrial/{path.relative_to(_PACKAGE)}": path.read_bytes() for path in _sources()}
    metadata = f"Metadata-Version: 2.1\nName: seatrial\nVersion: {seatrial.__version__}\n"
    metadata += "Summary: Training library and recipes of seatrial, without its host side\nRequires-Python: >=3.10\n"
    wheel = b"Wheel-Version: 1.0\nGenerator: seatrial\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents |= {f"{_DIST_INFO}/METADATA": metadata.encode(), f"{_DIST_INFO}/WHEEL": wheel}
    record = f"{_DIST_INFO}/RECORD"
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in contents.items()}
    rows = [f"{name},sha256={each.rstrip(b'=').decode()},{len(contents[name])}" for name, each in digests.items()]
    contents[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    return zip_bytes(contents)


def write_wheel(folder: Path) -> Path:
    """Write the wheel into this folder, named by its content; return its path. Ready images get it mounted."""
    data = wheel_bytes()
    path = folder / f"recipes-{hashlib.sha256(data).hexdigest()[:12]}.whl"
    if not path.exists():
        make_folder(folder)
        write_atomically(path, data)
    return path


def _sources() -> list[Path]:
    found = (path for folder in _FOLDERS for path in sorted((_PACKAGE / folder).rglob("*")))
    inside = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return [*(_PACKAGE / name for name in _FILES), *inside]


#: Folders without code: environments, caches, version control, results.
SKIPPED_FOLDERS = {".git", ".seatrial", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"}

#: A project larger than this has data or models in it, which belong onto a volume.
MAX_CODE_BYTES = 200 * 2**20

CODE = "code"

_COMPILED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inl", ".pxd", ".pxi", ".pyx")
_ABOUT = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "requirements.txt", "version.py", "__init__.py")
_MOST_SOURCES = 8 * 2**20

#: Runs setup.py without a GPU: many refuse to run if torch sees none, though nvcc needs none.
_RUN_SETUP = "import runpy, sys; {torch}sys.path.insert(0, ''); runpy.run_path('setup.py', run_name='__main__')"


@dataclass(frozen=True)
class OwnCode:
    """Hold what is compiled of the project: ``texts`` are its sources, by their place in the build context."""

    extensions: tuple[Extension, ...] = ()
    architectures: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> Iterator[Choice]:
        """Yield the plan's line of each extension."""
        for each in self.extensions:
            yield Choice(what="extension", value=each.folder, reason=f"compiles {', '.join(each.modules)}")

    def commands(self) -> tuple[str, ...]:
        """Return shell commands, beginning where the sources are, that leave the modules in EXTENSIONS_AT."""
        if not self.extensions:
            return ()
        packages = packages_of_imports({name for each in self.extensions for name in each.imports}, ())
        tools = [line for line in packages.lines if canonical_name(line) not in (*PACKAGES, "numpy", "setuptools")]
        found = [f"{VENV_PYTHON} -m pip install -q {shlex.join(['setuptools<70', 'wheel', 'ninja', *tools])}"]
        for each in self.extensions:
            torch = "import torch; torch.cuda.is_available = lambda: True; " if each.cuda else ""
            arches = f"FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST='{';'.join(self.architectures)}' " if each.cuda else ""
            what = "build_ext" if each.folder == "." else "build"
            program = shlex.quote(_RUN_SETUP.format(torch=torch))
            folder = shlex.quote(f"/build/{each.folder}")
            found.append(f"cd {folder} && {arches}{VENV_PYTHON} -c {program} {what} --build-lib {EXTENSIONS_AT}")
        return tuple(found)


def to_compile(needs: Needs, *, with_gpus: bool) -> tuple[tuple[Extension, ...], tuple[str, ...]]:
    """Return the extensions that this image can have, and a warning for each other."""
    found = tuple(each for each in needs.extensions if with_gpus or not each.cuda)
    lacks = "compiles CUDA code, which an image without a GPU has no compiler for: its modules are missing"
    return found, tuple(f"{each.folder}/setup.py {lacks}" for each in needs.extensions if each not in found)


def sources_of(project: Path, extensions: Collection[Extension]) -> dict[str, str]:
    """Return place in the context → text of each extension's sources and headers. Raises ConfigError: too large."""
    found: dict[str, str] = {}
    size = 0
    for each in extensions:
        folder = project / each.folder
        around = folder if folder == project else folder.parent
        for entry in files_below(around, skip=SKIPPED_FOLDERS, hidden=False, links=False):
            path = Path(entry.path)
            inside = path.is_relative_to(folder)
            own = inside and folder != project and path.suffix in (".py", ".txt", ".toml", ".cfg", ".md")
            if own or path.suffix in _COMPILED or (inside and path.name in _ABOUT):
                text = read_bytes(path, inside=project, limit_bytes=_MOST_SOURCES).decode("utf-8", "replace")
                found[f"{EXTENSIONS}/{path.relative_to(project).as_posix()}"] = text
                if (size := size + len(text)) > _MOST_SOURCES:
                    message = f"{each.folder}/setup.py: its sources are more than {format_bytes(_MOST_SOURCES)}"
                    raise ConfigError(message, run=f"du -a {as_typed(around)} | sort -n | tail")
    return found


def with_code(image: ImagePlan, project: Path, skipped: Collection[Path] = ()) -> ImagePlan:
    """Return the image with the project at /workspace, under a tag of its own; a ready image becomes the base.

    ``skipped``: folders of data or models. Raises UsageError: the project is too large to be code.
    """
    files = _files(project, {folder.resolve() for folder in skipped})
    if (size := sum(path.stat().st_size for path in files.values())) > MAX_CODE_BYTES:
        largest = max(files, key=lambda name: files[name].stat().st_size)
        message = f"The project is {format_bytes(size)}, too large for code: its largest file is {largest}"
        run = "mv the data out of the project, and: seatrial run … --data pvc:NAME"
        raise UsageError(message, cause="data and models in the project would be copied into the image", run=run)
    lines = [image.dockerfile] if image.dockerfile else [f"FROM {image.tag}", ""]
    lines += [
        "# The project, for nodes that cannot mount it. Writable for whichever user a pod runs as.",
        "USER root",
        f"COPY {CODE}/ {CONTAINER_PROJECT}/",
        f"RUN chmod -R a+rwX {CONTAINER_PROJECT}",
        f"USER {ORDINARY_USER}",
    ]
    name = re.sub(r"^seatrial/", "", image.tag.rpartition(":")[0] if ":" in image.tag.rpartition("/")[2] else image.tag)
    slug = re.sub(r"[^a-z0-9-]+", "-", (name if image.build else project.name).lower()).strip("-") or "project"
    digest = hashlib.sha256(json.dumps([image.tag, sorted(files)]).encode())
    for path in files.values():
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    tag, base = f"seatrial/{slug}:{digest.hexdigest()[:20]}", image.base or image.tag
    dockerfile = "\n".join([*lines, ""])
    context = {**image.context_files, **{f"{CODE}/{name}": str(path) for name, path in files.items()}}
    return image.changed(tag=tag, build=True, base=base, dockerfile=dockerfile, context_files=context)


def _files(project: Path, skipped: Collection[Path]) -> dict[str, Path]:
    """Return path in the project → file, sorted, without links that lead out of it: elsewhere they are broken."""
    found: dict[str, Path] = {}
    root = project.resolve()
    for entry in files_below(project, skip=SKIPPED_FOLDERS, hidden=True, links=True):
        path = Path(entry.path)
        if any(path.is_relative_to(folder) for folder in skipped):
            continue
        if not entry.is_symlink() or (path.is_file() and path.resolve().is_relative_to(root)):
            found[path.relative_to(project).as_posix()] = path.resolve() if entry.is_symlink() else path
    return dict(sorted(found.items()))


#: ``user@host:path``, as ssh is usually written.
_SSH = regex(r"(?:[^@/]+@)?(?P<host>[^:/@]+):(?P<path>[^/].*)")


def origin_labels(job: Job) -> dict[str, str]:
    """Return ``org.opencontainers.image.source`` and ``.revision``; {} for a recipe, or without a git checkout.

    The tag's digest leaves them out. Source of the names: github.com/opencontainers/image-spec, annotations.md.
    """
    revision = checkout.commit(job.project) if job.target.kind != "recipe" else None
    if revision is None:
        return {}
    if checkout.differs(job.project):
        revision += "-dirty"
    source = public_url(checkout.remote(job.project) or "")
    labels = {"org.opencontainers.image.revision": revision}
    return {**labels, "org.opencontainers.image.source": source} if source else labels


def public_url(remote: str) -> str | None:
    """Return a remote as a URL without login, query and fragment, which may hold tokens; None for a local folder."""
    if "://" not in remote:
        match = _SSH.fullmatch(remote)
        return f"ssh://{match['host']}/{match['path']}" if match else None
    parts = urlsplit(remote)
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return None
    return without_login(parts._replace(query="", fragment="").geturl())
