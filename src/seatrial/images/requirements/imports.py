"""Map imports to packages: known, guessed, or not guessed with a warning."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, product
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name
from seatrial.job.reading import modules as own_modules
from seatrial.job.reading.modules import STANDARD_MODULES, folder_of, is_file, is_folder, is_package
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import table
from seatrial.system.project_files import read_sources
from seatrial.system.source import MAX_BYTES
from seatrial.system.text import regex

_OURS = "seatrial"

#: Source: packaging.python.org/specifications/name-normalization; no name is longer than 100.
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_]{0,98}[A-Za-z0-9])?")

#: Import name → how the packages begin that provide it, where there are several builds of one.
_BUILDS = {"cv2": "opencv-", "faiss": "faiss-", "onnxruntime": "onnxruntime", "tensorflow": "tensorflow"}
_BUILDS |= {"cupy": "cupy-cuda", "paddle": "paddlepaddle"}
_BUILD = regex(r"-(binary|cpu|cu\w+|dev|fork|full|[cdg]pu|headless|intel|lite|nightly|rocm\w*|simd)\b.*")

#: Where Keras and TensorFlow keep a function, which differs by release.
_OF_KERAS = regex(r"(tensorflow\.)?([\w.]+\.)?keras(_preprocessing)?\.([\w.]+\.)?(?=\w+$)")

#: Letters that two names must share for one package to count as the other's module.
_SHORTEST_SHARED = 5


@dataclass(frozen=True)
class ImportedPackages:
    """Hold the packages of imported modules.

    Attributes:
        known: import name → package, from the table of import names.
        guessed: import name → a package of the same name, which nobody has looked at.
        elsewhere: import name → what to ask pip for instead; the index has no such package, or an unrelated one.
        unknown: names that projects give to their own modules, and names that no package can have.
    """

    known: Mapping[str, str]
    guessed: Mapping[str, str]
    elsewhere: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the requirements of a project without a list, sorted."""
        return tuple(sorted({*self.known.values(), *self.guessed.values()}, key=str.lower))

    @property
    def strangers(self) -> tuple[str, ...]:
        """Return import names whose package is guessed or unknown."""
        return (*self.guessed, *self.unknown)

    def without(self, names: Collection[str]) -> ImportedPackages:
        """Return the same packages without these import names."""
        known, guessed, elsewhere = (
            {name: package for name, package in each.items() if name not in names}
            for each in (self.known, self.guessed, self.elsewhere)
        )
        return ImportedPackages(known, guessed, elsewhere, tuple(name for name in self.unknown if name not in names))


def packages_of_imports(imports: Iterable[str], local_roots: Iterable[Path]) -> ImportedPackages:
    """Return the packages of these top-level names, except standard modules and those of folders in ``local_roots``."""
    roots = list(local_roots)
    names = _names()
    known: dict[str, str] = {}
    guessed: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    unknown = []
    for name in sorted(imports):
        standard = name in STANDARD_MODULES | {_OURS} or name.startswith("_")  # _plotly_utils: a part of another
        if standard or any(is_file(root / f"{name}.py") or is_package(root / name) for root in roots):
            continue
        own = (root / name for root in roots if name not in names.same | names.renamed.keys())
        if any(is_folder(each) and (name not in names.elsewhere or any(each.rglob("*.py"))) for each in own):
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
    """Return the index's package for conda's name; None if it is unknown or not a Python package."""
    names = _names()
    if (name := canonicalize_name(listed)) in names.conda:
        return names.conda[name]
    return name if name in names.packages else None


def package_named(word: str) -> str | None:
    """Return the index's package for a name in a sentence: of a module, of conda's, or its own."""
    return known_package(re.split(r"[<>=!~\[]", _names().renamed.get(word.lower(), word))[0])


def is_known(listed: str) -> bool:
    """Return True for a package, by its canonical name, whose modules the table knows."""
    return listed in _names().packages


def elsewhere(listed: str) -> str | None:
    """Return the requirement to write in place of a package whose name on the index belongs to another project."""
    return _names().elsewhere.get(listed)


def of_modules(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return listed name of a module → (module, its package), where the index's package of that name is not known."""
    packages = {str(canonicalize_name(name)): (name, package) for name, package in _names().renamed.items()}
    named = {line: packages.get(canonical_name(line) or "") for line in lines}
    return {line: row for line, row in named.items() if row and not is_known(canonicalize_name(row[0]))}


def implied_packages(modules: Iterable[str]) -> tuple[str, ...]:
    """Return packages that modules need and no import names, such as tensorboard for ``torch.utils.tensorboard``."""
    implied = _names().implied
    names = (_OF_KERAS.sub("keras.", name) if "keras" in name else name for name in modules)
    around = (accumulate(name.split("."), "{}.{}".format) for name in names)
    found = (implied[each] for each in chain.from_iterable(around) if each in implied)
    return tuple(sorted({package for each in found for package in each.split()}))


def provides(listed: str, name: str, package: str) -> bool:
    """Return True if a listed package, by its canonical name, may provide the module ``name``.

    One that the table knows provides its own module, however similar the names: torch is not torchvision.
    """
    wanted = canonicalize_name(re.split(r"[<>=!~ \[]", package)[0])
    if listed in (canonicalize_name(name), wanted):
        return True
    if name in _names().elsewhere and listed.startswith(f"{canonicalize_name(name)}-"):  # another's release of it
        return listed not in _names().packages
    if name in _BUILDS and listed.startswith(_BUILDS[name]):
        return True
    if is_known(listed) or listed.startswith("types-"):  # annotations alone
        return False
    if is_known(wanted) and listed.startswith(f"{wanted}-") and not _BUILD.fullmatch(listed[len(wanted) :]):
        return False  # keras-applications
    begins = accumulate(listed.split("-"))  # line-bot-sdk: line, linebot, linebotsdk
    if wanted.replace("-", "") in begins or listed.endswith(f"-{wanted}"):  # torchmanager-diffusion
        return True
    is_all_but_one = len(wanted) >= _SHORTEST_SHARED and wanted == listed[:-1]  # albumentationsx: albumentations
    return is_all_but_one or (len(listed) >= _SHORTEST_SHARED and wanted.startswith(listed))  # pycrypto, pycryptodome


class _Names(NamedTuple):
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
    renamed = {re.split("[<>=]", each)[0] for each in data["renamed"].values()}
    packages = frozenset(map(canonicalize_name, {*same, *renamed}))
    return _Names(same, data["renamed"], data["elsewhere"], generic, data["implied"], data["conda"], packages)


def the_project_itself(script: ScriptFacts, name: str) -> str:
    """Return the warning for a script that was started inside of the package that it imports."""
    file, _, line = script.where.get(name, "").rpartition(":")
    where = f"{file}:{line}" if file else "the target"
    module = f"-m {name}.{file.removesuffix('.py').replace('/', '.')}" if file else "…"
    found = "Python finds it only from the parent folder"
    return f"{where} imports {name}, the name of this folder; {found}: seatrial run -C .. {module}"


def elsewhere_in_the_project(
    script: ScriptFacts, own: dict[str, Path], project: Path, start: Path, found: Requirements
) -> Iterator[str]:
    """Yield a warning for each module of the project that the target cannot import, and for each import that fails.

    Raises ConfigError: a module is in a git submodule that was not fetched.
    """
    started = {name: folder for name, folder in own.items() if script.where.get(name, "").startswith("-m ")}
    for name, inside in started.items() if all(is_package(project / each) for each in started.values()) else ():
        named_at = script.where[name]
        way = f"seatrial run -m {'.'.join((*inside.parts, named_at.removeprefix('-m ')))}"
        yield f"{named_at}: {name} lies in the project's {inside}/: {way}"
        own = {each: place for each, place in own.items() if each != name}
    if own:
        at = {name: script.where.get(name, "the target") for name in own}
        lies = [f"{at[name]} imports {name}, which lies in the project's {folder}/" for name, folder in own.items()]
        folders = list(dict.fromkeys([*script.python_path, *map(str, own.values())]))
        them = "that folder" if len(folders) == 1 else "these folders"
        path = shlex.quote(":".join(os.path.relpath(project / each, start) for each in folders))
        yield f"{'; '.join(lies)}: unless the script adds {them} to sys.path, run with -e PYTHONPATH={path}"
    alike = {remedy: name for name, (_, remedy) in reversed(script.missing.items()) if "protoc " in remedy}
    for name, (where, remedy) in script.missing.items():
        if _is_installed(name, project, found) or alike.get(remedy, name) != name:
            continue
        if remedy.startswith("git "):
            run, _, folder = remedy.removesuffix(" is empty").partition("   # ")
            raise ConfigError(f"{where} imports {name} from the git submodule {folder}, which is empty", run=run)
        yield f"{where} imports {name}, which is not in the project: {remedy}"
    if loss := script.modules.get("torch.Tensor.data[0]"):
        yield f"{loss}: since torch 1.0 this fails for a loss, a tensor without dimensions; use loss.item()"


def _is_installed(name: str, project: Path, found: Requirements) -> bool:
    """Return whether an installed package may provide a module that a folder without ``__init__.py`` also has."""
    top = name.partition(".")[0]
    if not top or folder_of(top, project) is not None:
        return False
    known = _names().same | _names().renamed.keys()
    return top in known or is_listed(found, top, top) or folder_of(name, project) is not None


def taken_from_folders(script: ScriptFacts, from_folders: dict[str, Path | None], project: Path) -> Iterator[str]:
    """Yield warnings of modules from folders that the project names and that are not mounted with it."""
    for name, folder in from_folders.items():
        where, way = script.where.get(name, "the target"), "that folder does not exist"
        if folder is not None and is_folder(folder):
            both = Path(os.path.commonpath((folder, project)))
            paths = (each / "src" if is_folder(each / "src") else each for each in (folder, project))
            python_path = shlex.quote(":".join(os.path.relpath(each, both) for each in paths))
            way = f"run above both: seatrial run -C {os.path.relpath(both, project)} -e PYTHONPATH={python_path} …"
        source = "which pyproject.toml takes from a folder outside the project, not from an index"
        yield f"{where} imports {name}, {source}: {way}"


def in_empty_submodules(script: ScriptFacts, packages: ImportedPackages, project: Path) -> dict[str, str]:
    """Return module → the warning that a submodule is empty that may have it: third/cider is like pyciderevalcap.

    None is guessed. A name of no package may be in any submodule; any name, in one that the code puts on sys.path.
    """
    found, submodules = dict[str, str](), own_modules.empty_submodules(project)[::-1]
    named = {each.rpartition("/")[2] for each in submodules} - _names().same - _names().renamed.keys()
    named &= {*script.imports, *script.likely_imports}  # an empty folder on Python's path hides the name
    for name, submodule in product(dict.fromkeys((*packages.strangers, *sorted(named))), submodules):
        one, other = (re.sub(r"[\W_]", "", each.lower()) for each in (name, submodule.rpartition("/")[2]))
        where = script.where.get(name, "the target")
        text = "".join(read_sources([project / where.rpartition(":")[0]], project, MAX_BYTES))
        on_path = "sys.path" in text and re.search(rf"""["'/]{re.escape(submodule.rpartition("/")[2])}["'/]""", text)
        if name in packages.unknown or one in other or (len(other) > 2 and other in one) or on_path:
            what = f"{where} imports {name}, which is missing, and the git submodule {submodule} is empty"
            found[name] = f"{what}: git submodule update --init --recursive {shlex.quote(submodule)}"
    return found


def not_installed(
    needs: Needs, packages: ImportedPackages, script: ScriptFacts, project: Path
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (sentence with what to do, (module, package)) for each import that nothing in the list provides."""
    guesses = {} if needs.source == "the imports" else packages.guessed
    for name, ask in {**packages.elsewhere, **guesses}.items():
        if not is_listed(needs.requirements, name, ask):
            why, remedy = f"{needs.source} does not list it", "name its package"
            if name in packages.elsewhere:
                why, remedy = f"{name} on the package index is another project, has no wheel or is missing", "add it"
            shown = ask if name in packages.elsewhere else "PACKAGE"
            remedy += f' in seatrial.toml: [image] requirements = ["{shown}"]'
            place = script.where.get(name, "the target")
            yield f"{place} imports {name}, which is not installed: {why}; {remedy}", (name, ask)
    for name in packages.unknown:
        place = script.where.get(name, "the target")
        inner = {each.split(".")[1] for each in script.modules if each.startswith(f"{name}.")}
        other = own_modules.renamed(name, inner, project)
        if not other and name not in _names().generic and own_modules.generates(project, ()):  # its own name
            other = "; the project's installation builds it: pip install -t lib . && seatrial run -e PYTHONPATH=lib …"
        yield f"{place} imports {name}: not in the project, and no package is installed{other}", (name, name)


def still_warned(needs: Needs, installed: Collection[str]) -> tuple[str, ...]:
    """Return the warnings without those of modules that a dependency brings; ``installed``: canonical names."""
    absent = ((warning, needs.absent.get(warning)) for warning in needs.warnings)
    return tuple(text for text, module in absent if not (module and any(provides(each, *module) for each in installed)))


def absent_data(script: ScriptFacts, found: Requirements, at: Mapping[str, str]) -> Iterator[str]:
    """Warn of spaCy's models, NLTK's data and removed names that the releases ``at`` lack."""
    models = {name.removeprefix("spacy.load."): at for name, at in script.modules.items() if "spacy.load." in name}
    for name in (each for each in models if "spacy" in at and each.count("_") > 1 and not is_listed(found, each, each)):
        file = f"{name}-{'.'.join(at['spacy'].split('.')[:2])}.0"
        kind = ".tar.gz" if at["spacy"][:2] == "2." else "-py3-none-any.whl"  # wheels since 3.0
        page = f"https://github.com/explosion/spacy-models/releases/download/{file}/{file}{kind}"
        remedy = f'add it in seatrial.toml: [image] requirements = ["{name} @ {page}"]'
        yield f"{models[name].partition(' ')[0]} loads {name}, neither in a list nor on the package index; {remedy}"
    rows, used = table("import_names")["nltk_data"], [each for each in script.modules.items() if "nltk." in each[0]]
    reads = {rows[part]: where for name, where in used for part in name.split(".") if part in rows}
    if "nltk" in at and reads and not any("nltk.download" in name for name, _ in used):
        older = "_(tab|eng)$" if re.match(r"3\.[0-8]\b", at["nltk"]) else "$"  # before 3.9, which renamed them
        needs = f"{next(iter(reads.values())).partition(' ')[0]} needs NLTK's data, and no code downloads it"
        yield f"{needs}: before this line, call nltk.download({[re.sub(older, '', each) for each in reads]})"
    for name, text in table("import_names")["older_than_wheels"].items():
        package, since, *_ = text.split()
        bounds = (part for each in found.of(package) for part in each.specifier if part.operator in (">=", "==", "~="))
        release = at.get(package) or next((part.version.removesuffix(".*") for part in bounds), "0")  # or unlocked
        if (place := script.modules.get(name)) and Version(release) >= Version(since):
            yield f"{place}{f' {name}' * (' ' not in place)}: {text}"


def is_listed(found: Requirements, name: str, package: str) -> bool:
    """Return True if a line may provide the module ``name``; ``package``: what the table has for it, or a guess."""
    names = ((line, canonical_name(line)) for line in found.lines)
    return any(mentions(line, name) if own is None else provides(own, name, package) for line, own in names)


def mentions(address: str, name: str) -> bool:
    """Return True if an address has the name of a module: ``git+https://…/keras-contrib.git`` has keras_contrib."""
    word = re.escape(name.lower()).replace("_", "[-_]?")  # GradCache has grad_cache
    return re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9_-])", address.lower()) is not None
