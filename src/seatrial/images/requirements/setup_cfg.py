"""setup.cfg: what setuptools takes from it: ``install_requires``, extras, ``python_requires``.

Format: https://setuptools.pypa.io/en/latest/userguide/declarative_config.html
"""

from __future__ import annotations

from pathlib import Path

from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.declared import Declared
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.system.project_files import read_text

_MAX_BYTES = 300_000


def read_setup_cfg(file: Path) -> Declared | None:
    """The file's requirements, or None when it lists none. Raises ConfigError naming the file."""
    import configparser  # few projects have such a file

    text = read_text(file, inside=file.parent, limit_bytes=_MAX_BYTES)
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text, file.name)
    except configparser.Error as error:
        raise ConfigError(f"{file.name}: {str(error).splitlines()[0]}", run=f"${{EDITOR:-vi}} {file}") from None
    if not parser.has_option("options", "install_requires"):
        return None
    extras = dict(parser.items("options.extras_require")) if parser.has_section("options.extras_require") else {}
    return Declared(
        _lines(parser.get("options", "install_requires"), file),
        python_specifier(
            parser.get("options", "python_requires", fallback="").strip(), "setup.cfg: options.python_requires"
        ),
        {canonicalize_name(name): _lines(value, file) for name, value in extras.items()},
    )


def _lines(value: str, file: Path) -> tuple[str, ...]:
    """One requirement a line; setuptools takes semicolons for markers and ``file:`` for a list elsewhere."""
    listed = [line.partition(" #")[0].strip() for line in value.splitlines()]
    wanted = [line for line in listed if line and not line.startswith(("#", "file:"))]
    if len(wanted) > MOST_LINES:
        raise ConfigError(f"{file.name}: more packages than any image could contain", run=f"wc -l {file}")
    return tuple(checked_requirement(line, file.name) for line in wanted)
