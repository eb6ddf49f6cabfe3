"""Find lists of less usual names, installs of Dockerfile and README, and modules that the project compiles."""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path, PurePath

from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements import pip_format
from seatrial.images.requirements.imports import ImportedPackages, mentions, package_named, provides
from seatrial.images.requirements.other_formats import as_pip_has_it, own_names
from seatrial.images.requirements.pip_format import Extension, Guess, Requirements, canonical_name
from seatrial.images.requirements.pyproject import poetry_requirements
from seatrial.job.reading.modules import FRAMEWORKS, STANDARD_MODULES, empty_submodules, folders_of, is_file, is_folder
from seatrial.job.reading.signs import last_name, literal, tops_of
from seatrial.job.script import ScriptFacts
from seatrial.stack.facts import table
from seatrial.system.project_files import as_table, is_there, read_text, read_toml
from seatrial.system.source import UnreadableSourceError, parse_source
from seatrial.system.text import regex

_DOCKERFILES = ("Dockerfile", "docker/Dockerfile", ".devcontainer/Dockerfile")
_NAMED = product(
    ("", "docs/", "doc/", "readme/"), table("import_names")["lists"]["pages"].split(), (".md", ".rst", ".txt")
)
_PAGES = tuple(map("".join, _NAMED))
_MAX_BYTES = 300_000
_SHOWN = regex(
    r"(?:^\s*(?:[*+-]|\d+\.)|^|[`$>(!%@]|&&)\s*((?:python3? -m )?(?:pip3?|mim|conda|mamba|uv pip) install [^`\n]+)"
)
#: Frameworks' builds follow the machine; a page is from the day when it was written.
_OPEN = (*FRAMEWORKS, "torchvision", "torchaudio", "jaxlib", "paddle")

#: One release of a package, not a bound: ``PyTorch (1.8.0)``, ``| numpy | 1.19 |``, ``python=3.8``.
_BOUND_AFTER: str = table("import_names")["pages"]["after_a_bound"]
_RELEASE = regex(
    r"(?<![\w./@-])([A-Za-z][\w-]*?)(?:\]\([^)\s]*\))?[\s=:(|`*\]~]*(?:v(?:ersion)?[\s=:(|`*.]*)?(\d+(?:\.\d+){1,3})"
    rf"(?![\w-]|\.[\w*]|{_BOUND_AFTER})",
    re.IGNORECASE,
)
_HEADING = regex(r" {0,3}(?:#{1,6}\s|\*\*[^*]+\*\*:?\s*$)")
#: Words in headings and sentences about what the author had installed.
_AUTHORS = regex(table("import_names")["pages"]["of_the_author"])
#: Words in a line that names a bound, or what does not work.
_NO_RELEASE = regex(table("import_names")["pages"]["of_no_release"])
_MOST_OF_A_LINE = 300

#: A list as ``pip install -r docker/requirements.txt`` names it.
_SHOWN_LIST = regex(r"pip3? install [^\n]{0,200}?(?:-r|--requirement)[ =]*([\w./-]+\.txt)\b")

#: Words in the names of further lists for pip, the likeliest first, and words in lists for other uses.
_LIKELY, _OF_OTHERS = (table("import_names")["lists"][key].split(" ") for key in ("likely", "of_others"))

#: pixi's tables of packages, names of its GPU features, and a bound of its Python.
_OF_PIXI, _FOR_GPUS = ("dependencies", "pypi-dependencies"), regex("gpu|cuda")

#: Names of conda's lists, and what is in them: a configuration may have one of the keys, too.
_ENVIRONMENT, _CHANNELS = regex(r"(?i)env|conda|req"), regex(r"(?m)^channels:")
_DEPENDENCIES = regex(r"(?m)^dependencies:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*[ \t]*-")
_REQUIREMENTS, _MOST_LISTS = regex(r"(?:pip)?req(?:uirements?|s)?"), 50
#: Folders with lists for pip: the project itself, and those for installs, whose lists come last.
_OF_LISTS = regex(r"$|req|\.?(?P<last>build|conda|container|dep|docker|env|install|setup)")


def further_lists(folder: Path, script_dir: Path) -> list[str]:
    """List ``requirements/runtime.txt``, ``requirements-train.txt`` and the like, the likeliest first.

    A list that README or Dockerfile installs comes first, then one named after the script's folder.
    """
    found: dict[str, tuple[int, str]] = {}
    globs = map(folder.glob, ("*[rR][eE][qQ]*.txt", "[rR]eq*/*.txt", "*/[rR]eq*.txt"))
    for path in (path for each in globs for path in islice(each, _MOST_LISTS)):
        every = re.split(r"[\W\d_]+", path.stem.lower())
        words = [word for word in every if word and not _REQUIREMENTS.fullmatch(word)]
        place = path.parent.name.lower() if path.parent != folder else ""
        is_named = (kind := _OF_LISTS.match(place)) and len(words) < len(list(filter(None, every)))
        if (is_named or _REQUIREMENTS.fullmatch(place)) and not {*words} & {*_OF_OTHERS}:
            first = words[0] if words else ""
            rank = _LIKELY.index(first) if first in _LIKELY else len(_LIKELY)
            rank = -1 if script_dir != folder and first and first == script_dir.name.lower() else rank
            found[path.relative_to(folder).as_posix()] = (rank + _MOST_LISTS * bool(kind and kind["last"]), path.name)
    shown = (posixpath.normpath(each) for _, text in _read(folder, _PAGES) for each in _SHOWN_LIST.findall(text))
    inside = (each for each in shown if each[0] not in "./" and is_there(folder / each))
    first = [each for each in inside if {*re.split(r"[\W\d_]+", each.lower())}.isdisjoint(_OF_OTHERS)]
    return list(dict.fromkeys([*first, *sorted(found, key=lambda name: found[name])]))


def named_lists(file: Path, project: Path, usual: Collection[str]) -> list[str]:
    """List what ``pip install -r`` names in the target's text or a page's block of its command; [] for a usual list."""
    name = file.relative_to(project).as_posix() if file.is_relative_to(project) else file.name
    command = re.compile(rf"python[\d.]* (?:\S*/)?{re.escape(file.name)}\b")
    texts = [text for _, text in _read(project, [name])]
    for _, text in _read(project, _PAGES):
        texts += [text[: match.start()].rpartition("```")[2] for match in command.finditer(text)]
    shown = [posixpath.normpath(each) for text in texts for each in _SHOWN_LIST.findall(text)]
    there = [each for each in shown if each[0] not in "./" and is_there(project / each)]
    return there if {*there}.isdisjoint(usual) else []


def further_environments(folder: Path) -> list[str]:
    """List conda's files with other names, ``env_gpu.yaml`` and ``requirements.yml``, those for GPUs first."""
    found = {}
    paths = sorted((*folder.glob("*.y*ml"), *folder.glob("[rR]eq*/*.y*ml")))[:_MOST_LISTS]
    for name, text in _read(folder, (path.relative_to(folder).as_posix() for path in paths)):
        words = set(re.split(r"[\W\d_]+", (stem := PurePath(name).stem).lower()))
        named = _ENVIRONMENT.search(stem) is not None
        if not words & {*_OF_OTHERS} and _DEPENDENCIES.search(text) and (named or _CHANNELS.search(text)):
            found[name] = (not named, not words & {"gpu", "cuda", "linux", "train"})
    return sorted(found, key=lambda name: (found[name], name))


def read_pixi(file: Path) -> Requirements | None:
    """Read pixi's default and GPU features (pixi.sh/latest/reference/pixi_manifest), or None. Raises ConfigError."""
    whole = read_toml(file, inside=file.parent)
    table = whole if file.name == "pixi.toml" else as_table(whole, "tool", "pixi")
    features, default = as_table(table, "feature"), as_table(table, "environments").get("default", ())
    named = str(default.get("features") if isinstance(default, dict) else default)
    parts = [table, *(as_table(features, name) for name in features if repr(name) in named or _FOR_GPUS.search(name))]
    parts += [as_table(each, "target", "linux-64") for each in parts]
    conda, pip = ({k: v for each in parts for k, v in as_table(each, key).items()} for key in _OF_PIXI)
    versions = {name: each.get("version", "*") if isinstance(each, dict) else each for name, each in conda.items()}
    others = list[str]()
    for_pip = (as_pip_has_it(f"{name} {version}".rstrip(" *"), others) for name, version in versions.items())
    lines = [*filter(None, for_pip)]
    listed = poetry_requirements({"dependencies": pip}, file, "pypi-dependencies")
    bounds = re.findall(r"(?<![!=\d.])([<>=~]*)\s*(3\.\d+)", str(versions.get("python", "")))
    python = ",".join(f"=={number}.*" if sign in ("", "=", "==") else f"{sign}{number}" for sign, number in bounds)
    own = {canonical_name(line): line for line in (*lines, *(listed[0] if listed else ()))}
    required = pip_format.python_specifier(python, f"{file.name}: python")
    return Requirements(tuple(own.values()), python=required, conda=tuple(others)) if own else None


def shown_installs(project: Path) -> Iterator[tuple[str, str]]:
    """Yield (requirement, ``README.md:12 installs``) of each package: further lists, Dockerfiles, pages."""
    from seatrial.images.lint.commands import commands_of, installs_of  # an ordinary list leaves no question
    from seatrial.images.lint.instructions import Instruction, read_instructions

    for name in (each for each in further_lists(project, project) if each != "requirements.txt"):
        with suppress(ConfigError):  # the file does not list requirements
            yield from ((line, f"{name} lists") for line in pip_format.read_requirements(project / name, project).lines)
    further = (path.name for kind in ("*.sh", "*.ipynb") for path in islice(project.glob(kind), _MOST_LISTS))
    for name, text in _read(project, (*_DOCKERFILES, "Makefile", *_PAGES, *further)):
        runs = (Instruction("RUN", command, number, 0) for command, number in _of_page(text))
        steps = read_instructions(text) if name in _DOCKERFILES else runs
        commands = (command for step in steps if step.name == "RUN" for command in commands_of(step))
        for each in installs_of(tuple(commands)):
            folders = [word for option, word in pairwise(each.words) if option in ("-e", "--editable")]
            packages = [word for word in each.packages if word not in folders or "://" in word]
            if each.action == "install" and not each.tool.startswith("ap"):  # Debian's names are not the index's
                yield from ((line, f"{name}:{each.line} installs") for line in _lines(packages, each.tool))


def named_releases(folder: Path, project: Path) -> dict[str, tuple[str, str]]:
    """Return package → (release, ``README.md:12``) where a folder's pages name one among what code needs."""
    found: dict[str, dict[str, str]] = {}
    inner = f"{folder.relative_to(project)}/" if folder.is_relative_to(project) and folder != project else ""
    for page, text in _read(project, (inner + each for each in _PAGES)):
        about = fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            line, fenced = line[:_MOST_OF_A_LINE], fenced ^ line.lstrip().startswith("```")
            here = _AUTHORS.search(line) is not None
            about = here if _HEADING.match(line) and not fenced else about or (here and line.rstrip().endswith(":"))
            for name, release in _RELEASE.findall(line) if (about or here) and not _NO_RELEASE.search(line) else ():
                if package := "python" if name.lower() == "python" else package_named(name):
                    found.setdefault(package, {}).setdefault(release, f"{page}:{number}")
    return {package: next(iter(each.items())) for package, each in found.items() if len(each) == 1}


def installed_alone(project: Path, source: str) -> str | None:
    """Return the page that installs a list with ``--no-deps``; None without one."""
    name = re.compile(rf"(?<![\w/.-]){re.escape(source)}\b")
    pages = _read(project, (*_DOCKERFILES, *_PAGES))
    commands = ((page, each) for page, text in pages for each in re.findall(r"pip3? install ([^\n;&|`]*)", text))
    return next((page for page, each in commands if "--no-deps" in each and name.search(each)), None)


def _read(project: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if is_there(project / name):
            with suppress(ConfigError):  # a folder or a binary file
                yield name, read_text(project / name, inside=project, limit_bytes=_MAX_BYTES)


def _of_page(text: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        cell = re.fullmatch(r'\s*"([!%].*?)(?:\\n)?",?', line)  # of a notebook
        if found := _SHOWN.search(cell[1].replace('\\"', '"') if cell else line):
            yield re.sub(r"^(?:python3? -m )?mim ", "pip ", found[1].partition(" #")[0]), number


def _lines(words: list[str], tool: str) -> Iterator[str]:
    for word in words:
        line = as_pip_has_it(word) if tool == "conda" else word
        with suppress(ConfigError):  # the project itself, a file, a word of the sentence around it
            if line and "$" not in line:
                yield pip_format.checked_requirement(line, "")


def with_shown(packages: ImportedPackages, project: Path) -> tuple[ImportedPackages, tuple[str, ...]]:
    """Return the packages as the project's pages install them, and ``README.md:12 installs einops==0.3`` of each."""
    names = own_names(project) if packages.guessed else set()
    own = [name for name, package in packages.guessed.items() if canonicalize_name(package) in names]
    packages = replace(packages.without(own), unknown=(*packages.unknown, *own))
    every = {**packages.known, **packages.guessed, **{name: name for name in (*packages.elsewhere, *packages.unknown)}}
    wanted = {name: package for name, package in every.items() if not {name, package} & {*_OPEN}}
    found: dict[str, str] = {}
    notes = []
    for line, place in shown_installs(project) if wanted else ():
        listed = canonical_name(line := re.split(" @ file:| --hash=", line)[0].rstrip())  # another machine's
        for name, package in wanted.items():
            of_it = mentions(line, name) if listed is None else provides(listed, name, package)
            of_it &= name not in packages.elsewhere or listed != canonical_name(name)  # pip install detectron2 -f URL
            of_it &= listed not in table("import_names")["other_names"]  # cupy is its source, sklearn fails
            if of_it and name not in found and packages.known.get(name) != line:
                found[name] = line
                notes.append(f"{place} {line}")
    cloned = {name: ask for name, ask in packages.elsewhere.items() if name not in found and ask.startswith("git+")}
    for page, text in _read(project, (*_DOCKERFILES, *_PAGES)) if cloned else ():
        for name, ask in cloned.items():
            if name not in found and ask.removeprefix("git+").partition("#")[0].lower() in text.lower():
                found[name] = ask
                notes.append(f"{page} names {ask}")
    rest = packages.without([name for name in found if name not in packages.known])
    return replace(rest, known={**rest.known, **found}), tuple(notes)


def guesses(
    packages: ImportedPackages, script: ScriptFacts, project: Path, sentences: Mapping[str, str]
) -> Iterator[tuple[str, Guess]]:
    """Yield (canonical name, guess) for each package named after a module; ``sentences``: module → its warning."""
    submodules = shlex.join(empty_submodules(project) if sentences else [])
    below = [each for each in script.modules if "." in each]
    empty = f"; git has not fetched {submodules}: git submodule update --init --recursive {submodules}"
    pages = [*_read(project, (*_PAGES, "setup.sh", "install.sh") if sentences else ())]
    places = {each: "the target" if each in script.imports else "the project" for each in sentences} | script.where
    sources = dict(_read(project, {places[each].rpartition(":")[0] for each in sentences}))
    for name, package in ((name, packages.guessed[name]) for name in sentences if name in packages.guessed):
        text = sources.get((place := places[name]).rpartition(":")[0], "")
        alias = re.search(rf"^\s*import {name} as (\w+)", text, re.MULTILINE)
        uses = re.findall(rf"\b{alias[1] if alias else name}\.([A-Za-z]\w*)", text)
        names = [part for each in below if each.startswith(f"{name}.") for part in each.split(".")[1:]]
        words = "[-_]".join(map(re.escape, name.split("_")))
        named = re.compile(rf"https://git[\w.]+/[\w.-]+/{words}\b[\w-]*", re.IGNORECASE)
        found = ((page, named.search(read)) for page, read in pages)
        origin = next((f"; {page} names {match[0]}" for page, match in found if match), empty * bool(submodules))
        other = packages.known.get(name, "")
        guess = Guess(name, package, place, sentences[name], tuple(names), tuple(uses), origin, other)
        yield canonical_name(package) or package, guess


_MENTIONED = regex(r"[eE]xtension|_ext\b|cythonize")
_COMPILES = regex(r"(?:extension|_ext|cythonize)$", re.IGNORECASE)


def compiled_by_setups(project: Path, script: ScriptFacts) -> tuple[Extension, ...]:
    """Return the project's extensions that the target imports, each setup.py once."""
    wanted = {name.rpartition(".")[2] for name in (*script.modules, *script.missing)} | {*script.imports}
    found = []
    for folder in folders_of(project):
        if is_file(folder / "setup.py"):
            try:
                text = read_text(folder / "setup.py", inside=project, limit_bytes=_MAX_BYTES)
                tree = parse_source(text.encode(), "setup.py") if _MENTIONED.search(text) else None
            except (ConfigError, UnreadableSourceError):
                continue
            around = folders_of(folder) if "cythonize" in text else []  # it may list Cython's modules by a pattern
            cython = {path.stem for each in around for path in each.glob("*.pyx")}
            named = _compiled(tree) if tree is not None else {}
            keys = re.findall(r"""["']([\w.-]+)["']\s*:""", text)  # of package_dir
            alone = {each for each, alone in named.items() if alone} - {folder.name, *keys}
            gone = {each for each in alone if not any(is_folder(at / each) for at in folders_of(folder))}
            made = (named.keys() - gone | cython) & wanted if tree is not None else set()
            if tree is not None and made:
                imports = tops_of(ast.walk(tree)) - STANDARD_MODULES
                cuda = "CUDAExtension" in text or "make_cuda_ext" in text
                name = folder.relative_to(project).as_posix()
                found.append(Extension(name, tuple(sorted(made)), cuda, tuple(sorted(imports))))
    return tuple(found)


def _compiled(tree: ast.Module) -> dict[str, bool]:
    """Return name → whether only a package has it, for the compiled modules of setup.py and their packages."""
    names = dict[str, bool]()
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        called = last_name(call.func)
        if _COMPILES.search(called) or called == "setup":
            given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "name")]
            if called != "setup":
                given = [each for value in given for each in ast.walk(value) if isinstance(each, ast.expr)]
            texts = filter(None, map(literal, given))
            for text in texts:
                name = text.removesuffix(".pyx").replace("/", ".").rpartition(".")[2]
                names[name] = names.get(name, True) and called == "setup"
    return names
