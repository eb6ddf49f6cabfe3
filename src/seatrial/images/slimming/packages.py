"""Whose files are whose: packages of the layer below, and stubs there that a package above is linked to."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

from seatrial.images.slimming.elf import mapped
from seatrial.images.slimming.files import libraries
from seatrial.images.slimming.unused import strangers, users_of


def files_of(site: Path, listed: Path) -> set[Path]:
    """Files of the packages that a list of ``name==version`` names; the empty set where there is no list."""
    if not listed.exists():
        return set()
    names = {line.partition("==")[0] for line in listed.read_text("utf-8").split()}
    return {path for path, package in _owners(site).items() if re.sub(r"==.*", "", package) in names}


def wanted_stubs(site: Path) -> set[str]:
    """``name==version`` of packages of which a library is a stub that a package beside the framework is linked to."""
    files = libraries(site)
    users = users_of(files)
    stubs = [path for path in files if not mapped(path).sections]
    wanted = [path for path in stubs if strangers(users.get(path.name, set()))]  # a stub's name is its soname
    owners = _owners(site) if wanted else {}
    return {owners[path] for path in wanted if path in owners}


def _owners(site: Path) -> dict[Path, str]:
    """File → ``name==version`` of its package, from what pip has recorded."""
    owners = {}
    for package in metadata.distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        for file in package.files or ():
            owners[Path(os.path.normpath(str(site / str(file))))] = f"{name}=={package.version}"
    return owners
