"""Find a project's requirements: from its files, or from its imports if it has no list."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError, fallback
from seatrial.images.requirements import imports, instructions, other_formats
from seatrial.images.requirements.adjust import implied, installable, with_asserted, with_contrib
from seatrial.images.requirements.imports import ImportedPackages, is_known, is_listed, packages_of_imports, provides
from seatrial.images.requirements.instructions import further_environments, installed_alone, named_releases, with_shown
from seatrial.images.requirements.other_formats import ENVIRONMENT_FILES, READERS, locked_by_pipenv, read_list
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed, read_requirements
from seatrial.images.requirements.pyproject import locked_versions, own_packages, read_pyproject, requires_python
from seatrial.images.resolve.uv_texts import bare, pinned
from seatrial.job.reading.modules import FRAMEWORKS, folder_of, folders_of, is_folder, is_package
from seatrial.job.reading.signs import REPORT_TO
from seatrial.job.script import BUILT_ON, ScriptFacts
from seatrial.stack.facts import table
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import is_there, read_sources, read_text
from seatrial.system.text import first_of, regex

#: Written by ``seatrial build --lock``: every package of the image at its version.
LOCK = "seatrial.lock"

#: Lists for pip, in search order; web interfaces for diffusion use the second name.
LISTS = ("requirements.txt", "requirements_versions.txt")

#: Names of TensorFlow with which code computes; others read data.
_COMPUTES = regex(
    r"(tf_)?keras(?!\.(preprocessing|utils|datasets)\b)|tf_agents|tensorflow_(addons|hub|probability(?!\.sub))|"
    r"tensorflow\.(compat\.v\d\.)?(keras|nn|layers|Variable|GradientTape|estimator|Session)"
)
#: An import of any file; most files, and bytes of one, in which it is looked for.
_IMPORT, _MOST_SOURCES, _MOST_BYTES = re.compile(r"(?m)^[ \t]*(?:import|from)[ \t]+(\w+)"), 1000, 1 << 20
#: Every list that is read, in search order.
_NAMES = (*LISTS, "pixi.toml", "pyproject.toml", *ENVIRONMENT_FILES, *READERS)

#: Lock files of package managers, in search order.
LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "requirements.lock")

#: Lists of packages that are not read → the command that makes one that is.
UNREAD: dict[str, str] = table("import_names")["unread"]


def project_needs(
    project: Path,
    script: ScriptFacts,
    script_dir: Path,
    also: tuple[str, ...] = (),
    *,
    file: Path | None = None,
    folder: Path | None = None,
    package: Path | None = None,
    reread: Callable[[Iterable[str]], ScriptFacts] | None = None,
    imported: bool = False,
) -> Needs:
    """Read the first of requirements.txt, pyproject.toml (with its lock file), environment.yml, setup.py, the imports.

    The script's own list comes first, then the lists of the folder that it is started in, then a requirements.txt
    nearer to the script. What no file lists is added if its package is known. Raises ConfigError naming ``file:line``.

    Args:
        script_dir: the script's folder. also: further requirements. file: the script, which may list its own.
        folder: the working directory; the project by default. package: the folder of the module that is started.
        reread: reads the script with further folders on its path. imported: take of a frozen list what is imported.
    """
    roots = {project, project / "src", script_dir, *((folder, folder / "src") if folder else ())}
    extensions = instructions.compiled_by_setups(project, script)
    built = {name for each in extensions for name in each.modules}
    script = _as_it_runs(script, roots, built)
    built |= set() if "nvidia.dali" in script.modules else {"nvidia"}  # the framework brings nvidia.cublas
    packages = packages_of_imports(script.imports, roots).without(built)
    own = _all_elsewhere(_own_elsewhere(script, packages, project), reread, roots, built, project)
    inner = {each.split(".")[1] for each in script.modules if each.startswith(f"{project.name}.")}
    is_whole = is_package(project) or any(is_folder(project / each) for each in inner)
    itself = project.name if project.name in packages.strangers and is_whole else None
    taken = {name: place for name, place in _from_folders(packages, project).items() if name not in own}
    ours = [*own, *taken, *([itself] if itself else [])]
    lacking = imports.in_empty_submodules(script, packages.without(ours), project)
    own_lines = Requirements(also)
    ours += [*lacking, *(name for name, ask in packages.guessed.items() if is_listed(own_lines, name, ask))]
    packages, shown = with_shown(packages.without(ours), project)
    needs = _nearest_list(project, package or script_dir, folder or project, packages, file)
    modules = script.imports
    if needs is None:
        if script.framework and script.framework not in modules:  # imported in a function: nothing else names it
            modules = (*modules, script.framework)
            packages, shown = with_shown(packages_of_imports(modules, roots).without([*ours, *built]), project)
        needs, sentences = _of_imports(project, packages, shown, script)
    else:
        needs = _imported_alone(needs, packages, script) if imported else installable(needs)
        needs = _with_imported(needs, packages, script, also, shown)
        needs, packages, sentences = _with_inferred(needs, packages, project)
    missing = dict(imports.not_installed(needs.changed(needs.requirements.plus(*also)), packages, script, project))
    sentences |= {module: sentence for sentence, (module, _) in missing.items()}
    needs = _on_requested_python(project, needs)
    further = [*imports.elsewhere_in_the_project(script, own, project, folder or project, needs.requirements)]
    further += [*imports.taken_from_folders(script, taken, project), *lacking.values(), *missing]
    further += [imports.the_project_itself(script, itself)] if itself else []
    called = {} if "unsloth" in script.where else script.keywords  # it replaces functions of trl and transformers
    called = {name: at for name, at in called.items() if name.partition(".")[0] in script.imports}
    added, why, notes = implied(needs.requirements, script, script_dir, project)
    needs = replace(
        needs.changed(needs.requirements.plus(*added), why="; ".join(why)),
        imports=modules,
        unused=_unused(script),
        on_cpu=any(each.device == "cpu" for each in script.devices),
        feeds=not any(map(_COMPUTES.match, script.modules.keys() - {"tensorflow_addons"})),
        warnings=(*needs.warnings, *further, *notes),
        absent=missing,
        guessed=dict(instructions.guesses(packages, script, project, sentences)),
        project=project,
        extensions=extensions,
        names={k: at for k, at in script.modules.items() if not k.startswith(REPORT_TO) and " " not in at} | called,
        named={**named_releases(project, project), **named_releases(script_dir, project), **needs.named},
    )
    return _locked(with_asserted(with_contrib(needs, script.modules), script, packages.known), project)


def _as_it_runs(script: ScriptFacts, roots: set[Path], built: set[str]) -> ScriptFacts:
    """Add likely imports whose packages are known, but no framework; leave out modules that a build makes."""
    likely = packages_of_imports(script.likely_imports, roots).known
    fitting = (each for each in likely if each not in FRAMEWORKS and BUILT_ON.get(each) in (None, script.framework))
    modules = (*script.imports, *fitting)
    missing = {name: found for name, found in script.missing.items() if name.rpartition(".")[2] not in built}
    return replace(script, imports=modules, missing=missing)


def _all_elsewhere(
    own: dict[str, Path],
    reread: Callable[[Iterable[str]], ScriptFacts] | None,
    roots: set[Path],
    built: set[str],
    project: Path,
) -> dict[str, Path]:
    """Return the modules of the project that lie elsewhere, and those that these import."""
    more = reread and {**own}
    while reread and more:
        facts = reread(str(each) for each in dict.fromkeys(own.values()))
        further = _own_elsewhere(facts, packages_of_imports(facts.imports, roots).without(built), project)
        more = {name: place for name, place in further.items() if place not in own.values()}
        own = {name: place for name, place in own.items() if name not in facts.imports} | more
    return own


def _own_elsewhere(script: ScriptFacts, packages: ImportedPackages, project: Path) -> dict[str, Path]:
    """Return module → the project's folder with it. In a package, it must have the names that are imported from it."""
    found: dict[str, Path] = {}
    below = [each for each in script.modules if "." in each]
    for name in packages.strangers:
        names = [each.split(".")[1] for each in below if each.startswith(f"{name}.")]
        place = folder_of(name, project, names, place=script.where.get(name, ""))
        if place is not None and (names or name in packages.unknown or not is_package(project / place)):
            found[name] = place
    for name in (each for each, (_, fix) in script.missing.items() if "PYTHONPATH=" in fix):  # of a folder of that name
        if (place := folder_of(name, project)) is not None:
            found.setdefault(name.partition(".")[0], place)
    return found


def _unused(script: ScriptFacts) -> dict[str, str]:
    """Return TensorFlow and JAX if another computes; TensorFlow without models reads data, for Keras or next to JAX."""
    used = {script.framework, *script.where, *map(BUILT_ON.get, script.where)}
    reads = script.framework == "jax" or not {script.framework, *script.where} & {"tensorflow"}
    if reads and not any(map(_COMPUTES.match, script.modules)):
        used -= {"tensorflow"}
    others = (each for each in ("tensorflow", "jax") if script.framework and each not in used)
    return dict.fromkeys(others, "the target does not compute with it")


def _of_imports(
    project: Path, packages: ImportedPackages, shown: tuple[str, ...], script: ScriptFacts
) -> tuple[Needs, dict[str, str]]:
    """Return the needs of a project without a list that is read, and the warning of each guess."""
    uses = {each: f"{script.where.get(each, 'the target')} imports {each}" for each in packages.guessed}
    why = {name: f"{use}, and seatrial does not know its package" for name, use in uses.items()}
    guessed = {name: f"{package} is a guess: {why[name]}" for name, package in packages.guessed.items()}
    unread = next((name for name in UNREAD if is_there(project / name)), None)
    reason = f"{unread or 'no file'} {'is not read' if unread else 'lists packages'}: using the imports"
    warnings = (*([f"{unread} is not read: {UNREAD[unread]}"] if unread else []), *guessed.values())
    needs = Needs(Requirements(lines=packages.lines), "the imports", "; ".join((reason, *shown)), warnings=warnings)
    return needs, guessed


def _with_imported(
    needs: Needs, packages: ImportedPackages, script: ScriptFacts, also: tuple[str, ...], shown: tuple[str, ...]
) -> Needs:
    """Add packages that are imported and not listed, except frameworks, whose build is chosen later."""
    listed = needs.requirements.plus(*also)
    known = {name: package for name, package in packages.known.items() if name not in FRAMEWORKS}
    if not any(each.startswith("google.protobuf") for each in script.modules):
        known.pop("google", None)  # of google.cloud.storage and others, which are packages of their own
    missing = {name: package for name, package in known.items() if not is_listed(listed, name, package)}
    if not missing or needs.requirements.hashed:
        return needs
    places = {each: script.where.get(name, "imported") for name, each in reversed(missing.items())}  # the first counts
    also_imported = ", ".join(f"{each} ({places[each]})" for each in dict.fromkeys(missing.values()))
    notes = [note.split(" ", 2) for note in shown if note.split(" ", 2)[2] in missing.values()]
    why = "; ".join((f"the target also imports {also_imported}", *map(" ".join, notes)))
    exact = {line: pin for *_, line in notes for pin in pinned(bare([line], builds=False), "") if is_known(pin[0])}
    lines = dict.fromkeys(exact[line][0] if line in exact else line for line in missing.values())
    named = {exact[line][0]: (exact[line][1], place) for place, _, line in notes if line in exact}  # the list decides
    return replace(needs.changed(needs.requirements.plus(*lines), why=why), named={**needs.named, **named})


#: Conda's packages whose files are in a framework's wheels.
_OF_WHEELS = r"cuda(toolkit|-(?!python|bindings|core))|cudnn|nccl|libcu(?!rl)|pytorch-(cuda|mutex)"


def _with_inferred(
    needs: Needs, packages: ImportedPackages, project: Path
) -> tuple[Needs, ImportedPackages, dict[str, str]]:
    """Add conda's packages whose modules a file imports, and packages for modules that a list names, as guesses."""
    found, have = needs.requirements, {*map(canonical_name, needs.requirements.lines)}
    conda = {str(name): line for line in found.conda if (name := canonical_name(line)) not in have}
    inferred, named = dict[str, str](), {} if found.hashed else imports.of_modules(found.lines)
    sources = (path for folder in folders_of(project) for path in sorted(folder.glob("*.py"))) if conda else ()
    texts = read_sources(islice(sources, _MOST_SOURCES), project, _MOST_BYTES)
    anywhere = packages_of_imports({each for text in texts for each in _IMPORT.findall(text)}, [project]).guessed
    anywhere = {each: package for each, package in anywhere.items() if canonicalize_name(each) in conda}
    for module, package in {**anywhere, **packages.guessed}.items():
        if own := [each for each in conda if provides(each, module, package)]:
            inferred[module] = conda[max(own, key=lambda each: each == canonicalize_name(module))]
    every = {**packages.known, **packages.elsewhere, **packages.guessed}.items()
    inside = regex(_OF_WHEELS if packages.known.keys() & FRAMEWORKS else "$^")
    others = [each for each in conda if not inside.match(each)]
    rest = [each for each in others if not any(provides(each, *row) for row in (*every, *anywhere.items()))]
    shown = first_of(rest) if found.frozen else ", ".join(rest)
    why = [f"not installed, as the target imports none: conda's {shown}"] * bool(rest)
    taken = {line: package for line, (module, package) in named.items() if module not in packages.known}
    why += [f"{package} for {line}, which is the name of its module" for line, package in taken.items()]
    lines = dict.fromkeys((*(taken.get(line, line) for line in found.lines), *inferred.values()))
    inferred |= {module: line for line, (module, _) in named.items() if module in packages.known}
    guessed = replace(packages, guessed={**packages.guessed, **inferred})
    return needs.with_lines(lines, why="; ".join(why)), guessed, dict.fromkeys(inferred, "")


def _imported_alone(needs: Needs, packages: ImportedPackages, script: ScriptFacts) -> Needs:
    """Leave out the lines of a frozen list whose packages the target neither imports nor computes with."""
    listed, found = len(needs.requirements.lines), (needs := installable(needs)).requirements
    frameworks = {script.framework, *(FRAMEWORKS & script.where.keys())} - {None}  # those imported later as well
    others = {name: name for name in (*packages.unknown, *filter(None, frameworks))}
    kept, perhaps = set[str](), packages_of_imports(script.optional_imports, ())  # but those that no index has
    others |= {**perhaps.known, **perhaps.guessed}
    for name, package in {**packages.known, **packages.guessed, **packages.elsewhere, **others}.items():
        lines = [line for line in found.lines if is_listed(Requirements((line,)), name, package)]
        own = {canonicalize_name(name), canonicalize_name(re.split(r"[<>=!~\[ ]", package)[0])}
        kept |= {line for line in lines if canonical_name(line) in own} or {*lines}
    if not found.frozen or found.hashed or not kept:
        return needs
    left_out = tuple(line for line in found.lines if line not in kept)
    return replace(needs.with_lines(line for line in found.lines if line in kept), left_out=left_out, listed=listed)


def _from_folders(packages: ImportedPackages, project: Path) -> dict[str, Path | None]:
    """Return import name → folder of what the project takes from a folder; an index has none, or a stranger's."""
    folders = own_packages(project / "pyproject.toml")
    names = {**packages.known, **packages.guessed, **{name: name for name in packages.unknown}}
    packages_of = {name: canonicalize_name(re.split(r"[<>=!~\[]", package)[0]) for name, package in names.items()}
    return {name: folders[package] for name, package in packages_of.items() if package in folders}


def _nearest_list(
    project: Path, script_dir: Path, start: Path, packages: ImportedPackages, file: Path | None
) -> Needs | None:
    """Read the list in the script's folder, or in a folder between it and the project's own; in ``start`` of any kind.

    An example's own list names what the example adds: of what it does not list, the project's list decides the version.
    With a lock it is a project of its own.
    """
    listed = other_formats.read_inline(file, project) if file and is_there(file) else None
    if file and listed is not None:  # uv then ignores the project around it
        name = str(file.relative_to(project)) if file.is_relative_to(project) else file.name
        return Needs(listed, name, f"{name} lists them itself")
    named = instructions.named_lists(file, project, LISTS) if file else []
    if named and (own := _from_files(project, project, script_dir, packages, named)):
        return own
    outer = _from_files(project, project, script_dir, packages)
    folders = dict.fromkeys((script_dir, *script_dir.parents, start))
    for folder in (each for each in folders if each != project and each.is_relative_to(project)):
        locked = any(is_there(folder / lock) for lock in LOCKS)
        lists = None if folder == start else (*LISTS[:1], *["pyproject.toml"] * locked)
        if (inner := _from_files(folder, project, script_dir, packages, lists)) is None:
            continue
        found, theirs = inner.requirements, outer.requirements if outer else Requirements()
        found = replace(found, python=found.python & theirs.python)
        inner = replace(inner, requirements=found, reason=f"{inner.source} is the nearest to the script")
        if outer is None or locked or found.hashed or theirs.hashed:
            return inner
        unlisted = (package for module, package in packages.known.items() if not is_listed(found, module, package))
        names = {*map(canonicalize_name, unlisted)}
        if not (more := tuple(line for line in theirs.lines if canonical_name(line) in names)):
            return inner
        options, itself = (*found.options, *theirs.options), (*found.itself, *theirs.itself)
        found = replace(found.plus(*more, constraints=theirs.constraints), options=options, itself=itself)
        return inner.changed(found, why=f"{outer.source} lists {', '.join(more)}")
    return outer


def _from_files(
    folder: Path, project: Path, script_dir: Path, packages: ImportedPackages, only: Collection[str] | None = None
) -> Needs | None:
    """Read a folder's first list that names a package, or the first of all; ``only``: of these names."""
    names = only or (*_NAMES, *instructions.further_lists(folder, script_dir), *further_environments(folder))
    shown = {name: str((folder / name).relative_to(project)) for name in names if is_there(folder / name)}
    python = requires_python(folder / "pyproject.toml")
    environment = any(is_there(folder / name) for name in ENVIRONMENT_FILES)
    empty: Needs | None = None
    for name in shown:
        file, source = folder / name, shown[name]
        if environment and name in LISTS and "@ file:///" in read_text(file, inside=project):
            continue  # another machine's, frozen
        locked = name in LISTS and any(is_there(folder / lock) for lock in LOCKS[:2])
        declared = fallback(None, on=ConfigError)(read_pyproject)(folder / "pyproject.toml") if locked else None
        if declared and {*map(canonical_name, declared.lines)} - {*map(canonical_name, read_list(file, project).lines)}:
            continue  # behind the one that uv or poetry has locked
        notes, found, page = "", None, None
        if name.endswith((".txt", ".yml", ".yaml")):
            found = read_list(file, project)
            notes += f"; {page} installs it with --no-deps" if (page := installed_alone(project, source)) else ""
        elif name in READERS:
            found = READERS[name](file)
        elif name == "pixi.toml":
            found = instructions.read_pixi(file)
        elif (found := read_pyproject(file, packages.lines)) is not None:
            lock_file = next((each for each in LOCKS if is_there(folder / each)), LOCKS[0])
            pins = locked_versions(folder / lock_file)
            found = found.plus(constraints=pins)
            notes += f"; {lock_file} pins {len(pins)} versions" * bool(pins)
            notes += f"; uv's index adds {', '.join(found.options)}" * bool(found.options)
        if name == "pyproject.toml" and (pixi := instructions.read_pixi(file)):
            named = {canonical_name(line) for line in pixi.lines}
            listed = found.lines if found else ()
            own = (line for line in listed if canonical_name(line) not in named or _is_bounded(line))
            found = replace(found or pixi, lines=(*own, *pixi.lines), python=pixi.python)
        if found is not None:
            found = replace(found, python=python & found.python)
            reason = f"{source} lists {'them' if found.lines else 'no package'}{notes}"
            lock = locked_by_pipenv(folder / "Pipfile.lock", map(canonical_name, found.lines * (name == "Pipfile")))
            needs = _with_itself(folder, Needs(found, source, reason, alone=page is not None, named=lock))
            if needs.requirements.lines or found.conda:
                return needs
            empty = empty or needs
    return empty


def _with_itself(project: Path, needs: Needs) -> Needs:
    """Add for ``-e .`` what the project's packaging lists; the project's modules are found without pip."""
    if not needs.requirements.itself:
        return needs
    listed, warnings = other_formats.own_dependencies(project, filter(None, needs.requirements.itself))
    have = {canonical_name(line) for line in needs.requirements.lines if parsed(line) and _is_bounded(line)}
    own = tuple(line for line in listed.lines if _is_bounded(line) or canonical_name(line) not in have)
    names = {canonical_name(line) for line in own}
    kept = [line for line in needs.requirements.lines if _is_bounded(line) or canonical_name(line) not in names]
    options = (*needs.requirements.options, *listed.options)
    found = replace(needs.requirements, lines=(*kept, *own), options=options, python=needs.python & listed.python)
    reason = f"{needs.reason}, and lists the project itself"
    return replace(needs, requirements=found, reason=reason, warnings=(*needs.warnings, *warnings))


def _is_bounded(line: str) -> bool:
    """Return True if the line is more than a name."""
    return not re.fullmatch(r"[\w.-]+", line)


def _locked(needs: Needs, project: Path) -> Needs:
    file = project / LOCK
    if not is_there(file):
        return needs
    locked = read_requirements(file, project)
    return needs.changed(needs.requirements.plus(constraints=locked.lines), why=f"{LOCK} pins the versions")


#: pyenv's and uv's file: a version a line, the first that is there counts.
VERSION_FILE = ".python-version"
_MAX_BYTES, _MOST_WORDS = 10_000, 20
_VERSION = regex(r"(?:cpython-|python-?)?(3\.\d{1,3})(?:\.\d{1,3})?(?:-.*)?$")


def _on_requested_python(project: Path, needs: Needs, without: str = "") -> Needs:
    """Return the needs on the Pythons that the project admits, with a warning for each wish that is left aside.

    pyproject.toml and the list bind. .python-version and environment.yml name the one to take, if that can be done.
    Raises ConfigError naming the file.
    """
    warnings, listed, source = list[str](), needs.python, needs.source
    if source.endswith((".txt", ".yml", ".yaml", "Pipfile")) and not _admits(listed):  # an old list
        warnings.append(f"{source} requires Python {listed}, which seatrial does not support: not used")
        listed = SpecifierSet()
    found = requires_python(project / "pyproject.toml") & listed
    found = SpecifierSet(re.sub(r"==(3\.\d+)\.\d+(?=,|$)", r"==\1.*", str(found)))  # any patch release does
    for place, specifier in _wishes(project, source):
        if _admits(found & specifier) and place != without:
            found &= specifier
        else:
            excluded = f"{source}'s versions exclude it" if place == without else f"the project excludes it ({found})"
            why = f"and {excluded}" if _admits(specifier) else "which seatrial does not support"
            warnings.append(f"{place} requires Python {specifier}, {why}: not used")
    requirements, unwished = replace(needs.requirements, python=found), (found, tuple(warnings))
    unwished = unwished if without else _on_requested_python(project, needs, VERSION_FILE).unwished
    return replace(needs, requirements=requirements, warnings=(*needs.warnings, *warnings), unwished=unwished)


def _admits(specifier: SpecifierSet) -> bool:
    return any(specifier.contains(f"{python}.99") for python in PYTHONS)


def _wishes(project: Path, source: str) -> Iterator[tuple[str, SpecifierSet]]:
    if is_there(file := project / VERSION_FILE):
        text = fallback("", on=ConfigError)(read_text)(file, inside=project, limit_bytes=_MAX_BYTES)  # "": a folder
        if match := next(filter(None, map(_VERSION.match, text.split()[:_MOST_WORDS])), None):
            yield VERSION_FILE, SpecifierSet(f"=={match[1]}.*")
    for name in ENVIRONMENT_FILES:
        if name != source and is_there(file := project / name):
            listed = fallback(Requirements(), on=ConfigError)(read_list)(file, project)  # conda alone needs it right
            if len(listed.python):
                yield name, listed.python
