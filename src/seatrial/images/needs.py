"""What a project needs of others, and what of its lists no image can install."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet

from seatrial.images.requirements.other_names import for_linux
from seatrial.images.requirements.packages import provides
from seatrial.images.requirements.requirements_files import Requirements, canonical_name, parsed
from seatrial.job.plan import Choice
from seatrial.job.reading.standard_modules import STANDARD_MODULES
from seatrial.job.script import HOROVOD


@dataclass(frozen=True)
class Needs:
    """The project's own requirements, before a framework is resolved.

    Attributes:
        source: the file they are from, as it is called in sentences.
        python: what it asks for: ``requires-python``, .python-version and the like.
        imports: top-level names that the target imports, by which frameworks are chosen.
        warnings: what is imported and will not be installed, or is installed on a guess.
    """

    requirements: Requirements
    source: str
    reason: str
    python: SpecifierSet = field(default_factory=SpecifierSet)
    imports: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def plus(self, more: Requirements) -> Needs:
        """The same with further requirements."""
        return replace(self, requirements=self.requirements + more)

    @property
    def choice(self) -> Choice:
        return Choice(what="packages", value=", ".join(self.requirements.lines) or "none", reason=self.reason)


def installable(needs: Needs) -> Needs:
    """Without what no package index has for Linux: each is told of."""
    return _for_linux(_without_horovod(_without_standard_modules(_without_python(needs))))


def _without_horovod(needs: Needs) -> Needs:
    """A list's horovod from the index is left out: seatrial has a stand-in (seatrial.compat), and it does not build."""
    found = needs.requirements
    kept = tuple(line for line in found.lines if not _is_horovod(line))
    if kept == found.lines:
        return needs
    reason = f"{needs.reason}; horovod is left out: it has no wheels, and does not build against current torch"
    return replace(needs, requirements=replace(found, lines=kept), reason=reason)


def _is_horovod(line: str) -> bool:
    requirement = parsed(line)
    return requirement is not None and requirement.url is None and canonical_name(line) == HOROVOD


def _for_linux(needs: Needs) -> Needs:
    found, told = for_linux(needs.requirements)
    return needs if told is None else replace(needs, requirements=found, reason=f"{needs.reason}; {told}")


def _without_python(needs: Needs) -> Needs:
    """A list of pip's may name python itself, as conda's do: no package, but the version that the project is for."""
    named = {
        line: each for line in needs.requirements.lines if (each := parsed(line)) and each.name.lower() == "python"
    }
    if not named:
        return needs
    kept = replace(needs.requirements, lines=tuple(line for line in needs.requirements.lines if line not in named))
    asked = needs.python
    for each in named.values():
        pinned = re.fullmatch(r"={2,3}(\d+\.\d+)\S*", str(each.specifier))
        asked &= SpecifierSet(f"=={pinned[1]}.*") if pinned else each.specifier
    told = f"{needs.source} lists {', '.join(named)}, which pip cannot install: taken for the Python that it asks for"
    return replace(needs, requirements=kept, python=asked, warnings=(*needs.warnings, told))


def _without_standard_modules(needs: Needs) -> Needs:
    """Lists name modules of Python itself at times; the index has nothing by that name, or something else."""
    standard = [line for line in needs.requirements.lines if _is_standard_module(line)]
    if not standard:
        return needs
    kept = replace(needs.requirements, lines=tuple(line for line in needs.requirements.lines if line not in standard))
    what = "a module" if len(standard) == 1 else "modules"
    told = f"{needs.source} lists {', '.join(standard)}, {what} of Python itself: left out, as the package index has "
    told += "no such package, or another's"
    return replace(needs, requirements=kept, warnings=(*needs.warnings, told))


def _is_standard_module(line: str) -> bool:
    requirement = parsed(line)
    return requirement is not None and not requirement.marker and requirement.name in STANDARD_MODULES


def is_listed(found: Requirements, name: str, package: str) -> bool:
    """Whether a line may be meant to provide a module.

    Args:
        name: of the module. package: what the table has for it, or a guess.
    """
    for line in found.lines:
        listed = canonical_name(line)
        if name.lower() in line.lower() if listed is None else provides(listed, name, package):
            return True
    return False
