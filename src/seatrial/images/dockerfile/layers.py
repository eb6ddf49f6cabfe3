"""Describe the contents of an image, and split its requirements into layers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from seatrial.images.base import Base
from seatrial.images.dockerfile import layer_program
from seatrial.images.requirements.pip_format import Requirements, canonical_name, parsed
from seatrial.images.requirements.source_builds import SourceBuild, debian_packages
from seatrial.images.resolve.framework import PACKAGES, Resolved, framework_place
from seatrial.images.resolve.lock import Locked
from seatrial.images.slim.options import Slimming
from seatrial.images.sources import pip_conf
from seatrial.job.model import ImageOptions
from seatrial.stack.facts import table

#: The program of images/dockerfile/layer_program.py as a file of the build context, and its folder there.
TOOLS, PROGRAM = "tools", "layer.py"

#: Folders of the build context, each with the requirements of a layer.
FRAMEWORK, REQUIRED, LARGE, LOCKED, LISTED = "framework", "required", "large", "locked", "packages"
REQUIREMENTS, CONSTRAINTS = "requirements.txt", "constraints.txt"
_ORDER = (FRAMEWORK, REQUIRED, LARGE, LOCKED, LISTED)

#: Common packages that take more than 10 MB unpacked. By judgement, not by measurement: a name too few or too many
#: costs time in a build, nothing else.
_LARGE = table("import_names")["large"].split()


class Layers(NamedTuple):
    """Hold the requirements of each layer, by its folder.

    Attributes:
        folders: FRAMEWORK: of the first one, and what it needs of CUDA. REQUIRED: what it requires besides. LARGE:
            packages that are large. LOCKED: all others. LISTED: the lines as the project lists them, for pip to
            resolve on top of the layers below.
        by_hash: folders whose packages are all that is installed, each with its hash. hashed: the project's own lines
            have hashes.
    """

    folders: dict[str, Requirements]
    by_hash: frozenset[str] = frozenset()
    hashed: bool = False

    def texts(self) -> dict[str, str]:
        """Return path in the build context → text."""
        found = {}
        for folder, wanted in self.folders.items():
            found[f"{folder}/{REQUIREMENTS}"] = "\n".join([*wanted.options, *wanted.lines, ""])
            if wanted.constraints:
                found[f"{folder}/{CONSTRAINTS}"] = "\n".join([*wanted.constraints, ""])
        return found


class ImageContents(NamedTuple):
    """Hold everything that the Dockerfile's text depends on.

    Attributes:
        slug: name for people, in the title label.
        options: the user's, with the Debian packages that the requirements need.
        digests: folder of the build context → digest of what is in it; those that there are requirements for.
        compiles: the job compiles at run time.
        wheels: digest of the folder of wheels in the build context, or None.
        sources: digest of where packages come from, so that other sources make other layers; None without any.
        own_sources: the same for layers whose packages have no hashes: two projects share them only if nothing secret
            decides what is in there.
        own_wheel: file name of our wheel in the build context, or None.
        extensions: commands that compile the project's own modules.
        builds: packages that pip builds from source. architectures: compute capabilities to compile for.
    """

    slug: str
    options: ImageOptions
    base: Base
    resolved: Resolved
    layers: Layers
    slimming: Slimming
    digests: dict[str, str]
    compiles: bool = False
    wheels: str | None = None
    sources: str | None = None
    own_sources: str | None = None
    own_wheel: str | None = None
    extensions: tuple[str, ...] = ()
    builds: tuple[SourceBuild, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def git(self) -> bool:
        """Return True if a requirement comes from a git repository."""
        return any("git+" in line for line in self.resolved.requirements.lines)

    @property
    def unread(self) -> bool:
        """Return True if pip builds a source whose age and needs are unknown, and the list admits an old setuptools."""
        newer = r"setuptools *[=~>]=* *(8[2-9]|9\d|\d{3})"
        if any(re.match(newer, each) for each in self.resolved.requirements.lines):
            return False
        return LISTED in self.layers.folders and (self.git or not all(each.read for each in self.builds))

    @property
    def in_sight(self) -> bool:
        """Return True if the build of a package needs the image's packages."""
        return any(each.in_sight for each in self.builds)

    @property
    def pip_conf(self) -> bool:
        """Return True if the build gets a pip configuration as a secret."""
        return pip_conf(self.options) is not None

    @property
    def base_packages(self) -> tuple[str, ...]:
        """Return the Debian packages that the base's Python needs, its own included, before anything else."""
        own = (name for name in self.options.system_packages if name.startswith("python3"))
        return (*self.base.system_packages, *own)

    @property
    def system_packages(self) -> tuple[str, ...]:
        """Return the Debian packages of the project."""
        return tuple(name for name in self.options.system_packages if not name.startswith("python3"))

    @property
    def has_builder(self) -> bool:
        """Return True if packages are built in a stage that has more than the image."""
        needed = self.git or bool(debian_packages(self.builds))
        return LISTED in self.layers.folders and (needed or self.base.builder is not None or self.base.toolkit != "")


def split(
    found: Requirements, locked: Locked | None = None, builds: Iterable[SourceBuild] = (), pages: Iterable[str] = ()
) -> Layers:
    """Return the layers of these requirements; without a lock, the framework and all that the project lists.

    ``pages``: addresses of wheels that the index lacks, for LISTED.
    """
    place = framework_place(found)
    hashed = "--require-hashes" in found.options or found.hashed
    folders, by_hash = {}, set()
    if locked is not None:
        large = tuple(line for line in locked.packages if canonical_name(line) in _LARGE)
        others = tuple(line for line in locked.packages if line not in large)
        parts = {FRAMEWORK: locked.framework, REQUIRED: locked.required, LARGE: large, LOCKED: others}
        folders = {name: Requirements(lines, options=found.options) for name, lines in parts.items() if lines}
        by_hash = set(folders)
    if hashed and place is not None:
        folders[FRAMEWORK] = Requirements(_binaries(found.lines), options=found.options)
        by_hash = {FRAMEWORK}
    elif FRAMEWORK not in folders and place is not None:
        folders[FRAMEWORK] = _framework(found, place)
    if found.lines and (locked is None or locked.rest):
        folders[LISTED] = found
    if LISTED in folders:
        addresses = {each.line for each in builds if each.in_sight and "://" in each.line}
        rest = tuple(line for line in found.lines if line not in addresses)
        options = (*found.options, *(f"--find-links {page}" for page in dict.fromkeys(pages)))
        folders[LISTED] = replace(found, lines=rest, options=options)
    return Layers({name: folders[name] for name in _ORDER if name in folders}, frozenset(by_hash), hashed)


def _framework(found: Requirements, place: int) -> Requirements:
    """Return the framework's line, with its parts if it requires ranges of them; torch names each exactly."""
    line = found.lines[place]
    with_ranges = canonical_name(line) != "torch"
    parts = _binaries(found.lines, but=PACKAGES) if with_ranges else ()  # a second framework belongs to the packages
    constraints = _binaries(found.constraints, but=PACKAGES) if with_ranges else ()
    return Requirements(tuple(sorted({line, *parts})), constraints, found.options)


def program() -> bytes:
    """Return the bytes of the program for layers, which is the file TOOLS/PROGRAM of the build context."""
    return Path(layer_program.__file__).read_bytes()


def digest_of(texts: dict[str, str], folder: str, slimmer: bytes = b"") -> str:
    """Return a digest of a folder's files and our programs: Buildah does not look into what a step mounts."""
    files = {name: text for name, text in texts.items() if name.startswith(f"{folder}/")}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
    digest.update(hashlib.sha256(program()).digest() + hashlib.sha256(slimmer).digest())
    return digest.hexdigest()[:32]  # long: a project chooses what goes in, and must not meet another's


def _binaries(lines: Iterable[str], but: Collection[str] = ()) -> tuple[str, ...]:
    """Return the lines of frameworks and their parts that pip finds on an index, sorted: another order in the project
    makes no other layer."""
    named = ((canonical_name(line) or "", parsed(line), line) for line in lines)
    wanted = ((entry, line) for name, entry, line in named if layer_program.FRAMEWORK.match(name) and name not in but)
    return tuple(sorted(line for entry, line in wanted if entry and not entry.url))
