"""CDI specs of the tests, where this machine's engines read them: one test at a time, over all workers."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/etc/cdi")


@contextmanager
def written_spec(name: str, text: str, folder: Path = FOLDER) -> Iterator[Path]:
    """A spec in the folder, which is made, and removed again, where it was not there. Waits for other tests' specs."""
    with (Path(tempfile.gettempdir()) / "seatrial-tests-cdi.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_folder = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(text)
        try:
            yield path
        finally:
            path.unlink()
            if made_folder and not any(folder.iterdir()):
                folder.rmdir()
