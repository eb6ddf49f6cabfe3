"""A managed virtual environment for the local backend: a project's requirements, installed once per content."""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from seatrial.errors import DiskError, EngineError
from seatrial.system import command
from seatrial.system.typed_path import as_typed

#: venv alone takes seconds; a slow disk may need more.
CREATE_TIMEOUT_S = 300.0
COMPLETE = "seatrial-complete"


def ensure_venv(
    directory: Path,
    requirements: Sequence[str],
    python: Path,
    progress: Callable[[str], None],
) -> Path:
    """The interpreter of a virtual environment that holds these requirements; made when there is none yet.

    It is made where it stays, since its scripts name their interpreter by absolute path and would break on a move; a
    file marks a complete one, and what has no mark is made anew. A lock keeps two callers from making the same.

    Args:
        directory: holds one folder per content.
        requirements: lines of a requirements file.
        python: the interpreter it is based on.
        progress: gets a line for each step, and pip's output line by line.

    Raises:
        EngineError: with pip's own reason.
        DiskError: no space.
    """
    interpreter = venv_interpreter(directory, requirements, python)
    folder = interpreter.parent.parent
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _make(folder, requirements, python, progress)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            (folder / COMPLETE).touch()
    return interpreter


def venv_interpreter(directory: Path, requirements: Sequence[str], python: Path) -> Path:
    """Where ``ensure_venv`` puts, or has put, the interpreter. Makes nothing."""
    version = command.check([str(python), "-VV"], timeout_s=30).stdout
    content = "\n".join([str(python), version, *requirements])
    return directory / hashlib.sha256(content.encode()).hexdigest()[:16] / "bin" / "python"


def _make(folder: Path, requirements: Sequence[str], python: Path, progress: Callable[[str], None]) -> None:
    progress("creating the virtual environment")
    command.check([str(python), "-m", "venv", str(folder)], timeout_s=CREATE_TIMEOUT_S)
    progress("installing the packages with pip")
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    ended = command.stream([*pip, "--progress-bar", "off", "-r", str(listed)], progress)
    if ended.exit_code == 0:
        return
    if "No space left on device" in ended.stdout:
        raise DiskError(f"No space left for the packages in {folder.parent}", run=f"df -h {as_typed(folder.parent)}")
    errors = [line for line in ended.stdout.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else ended.last_line()
    packages = [line for line in requirements if not line.startswith("-")]  # an option may hold an index's password
    raise EngineError(
        f"The project's requirements cannot be installed: {reason}",
        run=shlex.join([str(python), "-m", "pip", "install", "--dry-run", *packages]),
    )
