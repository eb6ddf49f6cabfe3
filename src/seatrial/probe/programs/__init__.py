"""Programs that run under the target's own Python: read as text, never imported. Each prints one line of JSON."""

import pkgutil


def read_program(name: str) -> str:
    """Return the text of a program of this folder, ``torch_check.py`` for example. Raises OSError."""
    data = pkgutil.get_data(__name__, name)
    assert data is not None, "its loader reads files"
    return data.decode()
