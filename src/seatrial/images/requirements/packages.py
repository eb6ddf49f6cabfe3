"""Import name → package on the Python Package Index: known, guessed, or better not guessed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.utils import canonicalize_name

from seatrial.job.reading.modules import is_file, is_folder, is_package
from seatrial.job.reading.standard_modules import STANDARD_MODULES
from seatrial.stack.facts import table

_OURS = "seatrial"

#: Source: packaging.python.org/specifications/name-normalization; longer names than 100 there are none.
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_]{0,98}[A-Za-z0-9])?")

#: Import name → how the packages begin that provide it, where there are several builds of one.
_BUILDS = {"cv2": "opencv-", "faiss": "faiss-", "onnxruntime": "onnxruntime", "tensorflow": "tensorflow"}

#: A package by another's name that is the same module to those who import it.
_SHORTEST_SHARED = 5


@dataclass(frozen=True)
class ImportedPackages:
    """Packages for imported modules.

    Attributes:
        known: import name → package, from the table of import names.
        guessed: import name → a package of the same name, which nobody has looked at.
        elsewhere: import name → what to ask pip for instead; the index has no such package, or another's.
        unknown: names that projects give to their own modules, and names that no package can have.
    """

    known: Mapping[str, str]
    guessed: Mapping[str, str]
    elsewhere: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What pip is asked for where no file lists packages, sorted."""
        return tuple(sorted({*self.known.values(), *self.guessed.values()}, key=str.lower))

    @property
    def strangers(self) -> tuple[str, ...]:
        """Import names of which nobody knows whose they are."""
        return (*self.guessed, *self.unknown)

    def without(self, names: Collection[str]) -> ImportedPackages:
        """The same without these import names."""
        known, guessed, elsewhere = (
            {name: package for name, package in each.items() if name not in names}
            for each in (self.known, self.guessed, self.elsewhere)
        )
        return ImportedPackages(known, guessed, elsewhere, tuple(name for name in self.unknown if name not in names))


def packages_of_imports(imports: Iterable[str], local_roots: Iterable[Path]) -> ImportedPackages:
    """The packages that provide these top-level names; neither standard modules nor the project's own.

    Args:
        local_roots: folders whose modules and packages belong to the project.
    """
    roots = list(local_roots)
    names = _names()
    known: dict[str, str] = {}
    guessed: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    unknown = []
    for name in sorted(imports):
        standard = name in STANDARD_MODULES or name == _OURS
        if standard or any(is_file(root / f"{name}.py") or is_package(root / name) for root in roots):
            continue
        if not _is_known(name, names) and any(is_folder(root / name) for root in roots):
            continue  # a folder without __init__.py: an installed package of that name goes before it
        if name in names.elsewhere:
            elsewhere[name] = names.elsewhere[name]
        elif name in names.renamed:
            known[name] = names.renamed[name]
        elif name in names.same:
            known[name] = name.replace("_", "-")
        elif name in names.generic or not _PACKAGE.fullmatch(name):
            unknown.append(name)
        else:
            guessed[name] = name.replace("_", "-")
    return ImportedPackages(known, guessed, elsewhere, tuple(unknown))


def known_package(listed: str) -> str | None:
    """The package on the index for a name that conda uses, or None: it is no Python package, or nobody knows it."""
    names = _names()
    name = canonicalize_name(listed)
    if name in names.conda:
        return names.conda[name]
    return name if name in names.packages else None


def elsewhere(listed: str) -> str | None:
    """What to ask pip for in place of a package whose name on the index is another project's."""
    return _names().elsewhere.get(listed)


def _is_known(name: str, names: _Names) -> bool:
    return name in names.renamed or name in names.same


def implied_packages(modules: Iterable[str]) -> tuple[str, ...]:
    """Packages that imported modules, or those around them, need and that no import names.

    tensorboard for ``torch.utils.tensorboard``, ray[tune] for ``ray.tune.schedulers``.
    """
    implied = _names().implied
    return tuple(sorted({implied[each] for module in modules for each in _around(module) if each in implied}))


def _around(module: str) -> Iterator[str]:
    """The module, and the packages that it is in: ``a.b.c``, ``a.b``, ``a``."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def provides(listed: str, name: str, package: str) -> bool:
    """Whether a listed package, by its canonical name, may be meant to provide an imported module.

    One that the table knows provides its own module, however similar the names: a list with torch says nothing of
    torchvision, nor one with lightning-utilities of lightning.

    Args:
        name: of the module. package: what the table has for it, or a guess.
    """
    wanted = canonicalize_name(re.split(r"[<>=!~]", package)[0])
    if listed in (canonicalize_name(name), wanted):
        return True
    if name in _BUILDS and listed.startswith(_BUILDS[name]):
        return True
    if listed in _names().packages:
        return False
    if listed.startswith(f"{wanted}-"):
        return True
    return len(listed) >= _SHORTEST_SHARED and wanted.startswith(listed)  # pycrypto, pycryptodome


@dataclass(frozen=True)
class _Names:
    same: frozenset[str]
    renamed: dict[str, str]
    elsewhere: dict[str, str]
    generic: frozenset[str]
    implied: dict[str, str]
    conda: dict[str, str]
    packages: frozenset[str]


@lru_cache(maxsize=1)
def _names() -> _Names:
    data = table("import_names")
    same, generic = (frozenset(" ".join(data[key]).split()) for key in ("same_name", "generic"))
    packages = frozenset(
        map(canonicalize_name, {*same, *(re.split("[<>=]", each)[0] for each in data["renamed"].values())})
    )
    return _Names(same, data["renamed"], data["elsewhere"], generic, data["implied"], data["conda"], packages)
