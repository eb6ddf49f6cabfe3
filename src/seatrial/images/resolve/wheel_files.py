"""Compare the files of releases with the modules that the project imports or starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.dockerfile.layer_program import FRAMEWORK
from seatrial.images.requirements.imports import is_known, packages_of_imports, provides
from seatrial.images.requirements.pip_format import Guess, Needs, canonical_name
from seatrial.images.requirements.source_builds import companions, fits
from seatrial.images.resolve.answers import Lock, LockedPackage, ResolveRequest, SourceTexts, Unsatisfiable
from seatrial.images.resolve.edits import CHANGE_IMPORT, written
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.model import Job
from seatrial.system.project_files import is_there
from seatrial.system.text import first_of

#: Guesses looked up at once; most releases inspected for each.
_AT_ONCE, _MOST_RELEASES = 4, 4

#: Imports names that another package may define.
_STAR = "import *"

#: Packages too large to read, or whose names tables hold. Most packages whose names are looked up.
_OF_FRAMEWORKS = re.compile(rf"{FRAMEWORK.pattern}|(torchaudio|torchtext|tf-keras|tensorflow-.*)$")
_MOST_PACKAGES = 8


def judged(resolver: UvResolver, request: ResolveRequest, needs: Needs, installed: Collection[str] = ()) -> Needs:
    """Search the index's releases for guessed modules: add or pin the package, warn, or keep an unknown guess.

    ``installed``: canonical names of a lock, to judge the guesses that no list has; without it, the listed ones.
    """
    listed = set(map(canonical_name, needs.requirements.lines))
    unclear = {name: guess for name, guess in needs.guessed.items() if (name in listed) != bool(installed)}
    given = {name for name, guess in unclear.items() if any(provides(each, guess.module, name) for each in installed)}
    guesses = {name: guess for name, guess in unclear.items() if name not in given}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        releases = list(threads.map(lambda guess: _release(resolver.for_guesses, request, guess), guesses.values()))
    for (name, guess), release in zip(guesses.items(), releases, strict=True):
        what = f"{guess.place} imports {guess.module}"
        if guess.other and (not release or release.startswith("?")):
            why = f"{guess.other} for {guess.package}, as {what}, which the index's {name} is not known to have"
            needs = needs.judged(name, guess.other, why=why)
        elif release == "" and guess.package in needs.requirements.conda:
            note = f"{what}, of conda's {guess.package} ({needs.source}), which the package index lacks"
            needs = needs.judged(name, warning=f"{note}: name an image with it: seatrial run --image IMAGE …")
        elif release == "":
            has = f"{guess.module}.{guess.names[0]}" if guess.names else "it"
            lacks = f"neither the project nor a package of that name has {has}{guess.origin}"
            note, page = f"{what}: {lacks}; add {guess.module}.py", guess.origin.partition(" names ")[2]
            note = f"{what}: {first_of(guess.unread)} may have it (not read); plan again" if guess.unread else note
            way = f"{note}, or name its package in seatrial.toml: [image] requirements"
            if page and not guess.unread:
                way = f'{what}: {lacks}; if that is it, add in seatrial.toml: [image] requirements = ["git+{page}"]'
            needs = needs.judged(name, warning=way)
        elif release and not release.startswith("?"):
            needs = needs.judged(name, release, why=f"{what}, which {release} provides")
        elif release and name not in listed:
            wanted = f'if that is its package, add it in seatrial.toml: [image] requirements = ["{guess.package}"]'
            note = f"{what}, which is not installed: {needs.source} does not list it; {release[1:]} has this module"
            needs = needs.judged(name, warning=f"{note}: {wanted}{guess.origin}")
        elif guess.origin and name not in listed:
            needs = needs.judged(name, warning=f"{guess.sentence}{guess.origin}")
    return needs


def _release(resolver: UvResolver, request: ResolveRequest, guess: Guess) -> str | None:
    """Return the line for the newest release that has a module and its used names; "" for none, None for unknown.

    ``?pyexr 0.5.0``: the release has the module, but no used name confirms it, or it is newer than all wheels. Of
    older releases, the newest before the major version and before minor versions are inspected.
    """
    bound, words = "", tuple(dict.fromkeys(guess.names or guess.uses))
    pinned = bool(Requirement(guess.package).specifier)
    for _ in range(_MOST_RELEASES):
        line = guess.package + "," * bool(bound and pinned) + bound
        answer = resolver.resolve(request.only(line))
        if isinstance(answer, Unsatisfiable):
            return "" if bound or answer.no_package or (pinned and answer.no_version) else None
        package = next(iter(answer.packages), None) if isinstance(answer, Lock) else None
        if package is None:
            source = resolver.source(line, request) if isinstance(answer, Lock) else None
            return f"?{line} {source.version}".rstrip() if source and _holds(source, guess.module) else None
        files = resolver.files(request, package, (*words, _STAR))
        if not any(each.endswith((".py", ".so")) for each in files):  # too large, or a package of dependencies alone
            names = {word: f"{guess.module}.{word}" for word in words}
            row = resolver.names(request, {package: (guess.module, *names.values())}).get(package.name)
            if row is None or guess.module in row.names:
                return None
            files = frozenset((guess.module, *(f":{word}" for word in words if names[word] not in row.names)))
        if any(re.match(rf"{guess.module}(?:[/.]|$)", each) for each in files):
            if bound or (words and {f":{word}" for word in words} <= files):
                return f"{package.name}=={package.version}" if bound else guess.package
            if not guess.names or f":{_STAR}" in files or any(each.endswith(".so") for each in files):
                return f"?{guess.package} {package.version}"
        source = None if bound else resolver.source(line, request)
        if source and Version(source.version or "0") > Version(package.version) and _holds(source, guess.module):
            return f"?{guess.package} {source.version}"
        if resolver.unanswered:
            return None
        major, minor, *_ = *Version(package.version).release, 0
        bound = f"<{major}" if major and not bound else f"<{major}.{minor}"
    return ""


def _holds(source: SourceTexts, module: str) -> bool:
    return any(map(re.compile(rf"(?:src/|lib/|python/)?{module}(?:/|\.py$)").match, source.names))


def with_provided(resolver: UvResolver, request: ResolveRequest, needs: Needs, lock: Lock) -> Needs:
    """Return the needs without warnings of modules that a package with another name has."""
    tops = {each for each, _ in needs.absent.values()}
    modules = {each: [each, *(name for name in needs.names if name.startswith(f"{each}."))] for each in tops}
    listed = set(map(canonical_name, needs.requirements.lines))
    others = [each for each in lock.packages if any(each.sha256) and not is_known(each.name)] if tops else []
    first = sorted(others, key=lambda each: each.name not in listed)[:_MOST_PACKAGES]
    lacked = resolver.names(request, dict.fromkeys(first, tuple(chain(*modules.values()))))
    found = {each for each in tops if any({*modules[each]}.isdisjoint(row.names) for row in lacked.values())}
    own = {canonical_name(line): line for line in needs.requirements.lines}
    for name in lock.from_source[:_MOST_PACKAGES] if tops - found else ():
        if source := resolver.source(own.get(canonicalize_name(name)) or name, request):
            found |= {each for each in tops if _holds(source, each)}
    late = others if resolver.unanswered or resolver.late else ()
    unread = tuple(each.name for each in late if each.name in listed and each.name not in lacked)
    unread += tuple(line for line in needs.requirements.lines if "://" in line)
    gone = {warning for warning, (each, _) in needs.absent.items() if each in found}
    left = ((name, guess._replace(unread=unread)) for name, guess in needs.guessed.items())
    guessed = {name: guess for name, guess in left if guess.sentence not in gone}
    return replace(needs, guessed=guessed, warnings=tuple(each for each in needs.warnings if each not in gone))


def with_undeclared(needs: Needs, lock: Lock, cuda: str) -> Iterator[tuple[Needs, str]]:
    """Yield the needs with each requirement that a locked release does not declare, and a warning if it does not fit.

    The needs stay as they are where the list excludes it. ``cuda``: of the framework's build, or "".
    """
    at, own = {each.name: Version(each.version).public for each in lock.packages}, needs.requirements
    numpy_1 = [each.name for each in lock.packages if each.numpy_1]
    for line, of in companions(own, at | ({"cuda": cuda} if cuda else {}), numpy_1).items():
        found = own.plus(constraints=(line,)) if canonical_name(line) in at else own.plus(line)
        release = f"{of} {at[of]}" if of in at else of  # which pip builds
        note = f"{release} needs {line}, which does not fit the list: it may fail"
        yield needs.changed(found, why=f"{line} for {release}") if fits(own, line) else needs, note


def with_names(
    resolver: UvResolver, request: ResolveRequest, needs: Needs, lock: Lock
) -> tuple[Needs, tuple[str, ...]]:
    """Return the needs with packages below the release that lost an imported name, and warnings if they stay as locked.

    Raises ConfigError: the project demands a release without the name.
    """
    locked = {each.name: each for each in lock.packages}
    lacked = resolver.names(request, _by_package(needs.names, lock))
    brought = {name: locked[by] for by, row in lacked.items() for name in row.imports if name not in needs.names}
    further = resolver.names(request, _by_package(brought, lock))
    notes = []
    for package, found in ((locked[name], row) for name, row in chain(lacked.items(), further.items())):
        if not (gone := next((name for name in found.names if "." in name), None)):
            continue
        importer, own = brought.get(gone), needs.requirements.of(package.name)
        verb, way = ("calls", CHANGE_IMPORT.replace("import", "call")) if "(" in gone else ("imports", CHANGE_IMPORT)
        what = f"{f'{importer.name} {importer.version}' if importer else needs.names[gone]} {verb} {gone}"
        bound = f"{package.name}<{found.below}" if found.below else f"{package.name}>{package.version}"
        lacks = f"{what}, which {package.name} {package.version} lacks"
        excluded = not all(each.specifier.contains(found.newest) for each in own) if found.below else bool(importer)
        edit = f"{package.name}=={found.newest}" if any("==" in str(each.specifier) for each in own) else bound
        if excluded and importer:
            bound = edit = f"{importer.name}>{importer.version}"
            excluded = any("==" in str(each.specifier) for each in needs.requirements.of(importer.name))
        if excluded and "(" not in gone:  # a call may not run
            if package.name in ("keras", "torchvision") and not importer:  # the framework decides their release
                raise ConfigError(lacks, run=way)
            raise ConfigError(lacks, run=written([edit], needs), edits=[edit].copy)
        tried = any(each.startswith(f"{package.name}>") for each in needs.requirements.constraints)
        other_release = found.below or importer or (needs.as_of and not tried)
        if other_release and not excluded and bound not in needs.requirements.constraints:
            needs = needs.changed(needs.requirements.plus(constraints=(bound,)), why=f"{bound}, as {what}")
        older = f"; {bound} has it, but does not fit" if found.below else ""
        other = ", or name the package that has it in seatrial.toml: [image] requirements"
        other *= "(" not in gone and bool(packages_of_imports([gone.partition(".")[0]], ()).guessed)
        way = f"the target stops at this import, and no {bound} fits" if importer else f"{way}{other}{older}"
        notes.append(f"{lacks}: {way}")
    return needs, tuple(notes)


def _by_package(names: Mapping[str, str | LockedPackage], lock: Lock) -> dict[LockedPackage, list[str]]:
    """Return package → names of older importers that it may lack; for torch, private names: tables hold the others."""
    imported = packages_of_imports({name.partition(".")[0] for name in names}, ())
    modules = {canonical_name(line): module for module, line in {**imported.guessed, **imported.known}.items()}
    found = dict[LockedPackage, list[str]]()
    for package in lock.packages:
        few = [name for name in names if name.partition(".")[0] == modules.get(package.name)]
        few = [name for name in few if isinstance(by := names[name], str) or by.uploaded < package.uploaded]
        few = [name for name in few if "." in name] or few
        few = [name for name in few if "._" in name] if package.name == "torch" else few
        if few and (package.name == "torch" or (any(package.sha256) and not _OF_FRAMEWORKS.match(package.name))):
            found[package] = few
    return dict(sorted(found.items(), key=lambda each: ("." not in each[1][0], each[0].uploaded))[:_MOST_PACKAGES])


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
