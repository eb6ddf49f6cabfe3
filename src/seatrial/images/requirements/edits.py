"""Edits of the files that list packages, as errors propose them: in the form of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import Needs
from seatrial.system.project_files import is_there, read_text


def written(lines: Sequence[str], file: str, needs: Needs) -> str:
    """Return the edit that puts lines into a file of the project, each in the form that the file has for its package.

    Poetry has ``torch = "==2.1"`` for ``torch==2.1``, ``conda list`` ``torch=2.1=pypi_0``, an environment ``pytorch``.
    """
    text = ""
    if needs.project is not None and is_there(needs.project / file):
        with suppress(ConfigError):
            text = read_text(needs.project / file, inside=needs.project)
    own = []
    for line in lines:
        name, specifier = re.fullmatch(r"([\w.-]+)(.*)", line, re.S).groups()  # type: ignore[union-attr]
        known = "(?:py)?torch" if name == "torch" else name.replace("-", "[-_.]")
        form = re.search(rf"(?im)^ *-? *({known})( *= *[\"{{]|=[^=\s]+=\S+$|=)", text)
        name = form[1] if form else name
        poetry, conda = f'{name} = "{specifier}"', f"{name}={specifier.lstrip('=')}=pypi_0"
        own.append(poetry if form and form[2][-1] in '"{' else conda if form and form[2][1:] else f"{name}{specifier}")
    return f"write {' and '.join(own)} in {file}"
