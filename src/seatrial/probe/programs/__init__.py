"""Programs that run under the target's own Python: read as text, never imported. Each prints one line of JSON."""

import pkgutil


def read_program(name: str) -> str:
    """Return the text of a program of this folder, ``torch_check.py`` for example. Raises OSError."""
    data = pkgutil.get_data(__name__, name)
    if data is None:
        raise OSError(2, "not in the archive: " + name)
    return data.decode()
