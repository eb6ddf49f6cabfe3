"""Files that hold pickled code, and why they are not opened."""

from __future__ import annotations

import zipfile
from pathlib import Path

from seatrial.serve.errors import ServeError

SUFFIXES = (".pth", ".pt", ".pkl", ".pickle", ".joblib", ".bin", ".ckpt")


def refuse_pickles(path: Path) -> None:
    """Raises ServeError when the file is a pickle, whatever its name says; torch.save writes one into a zip."""
    with path.open("rb") as file:
        start = file.read(4)
    pickle = start[:1] == b"\x80" or path.suffix in SUFFIXES
    if start == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.partition("/")[2] for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise ServeError(
                f"{path.name} is truncated or damaged", "copy it anew, or export the model again"
            ) from error
        pickle = pickle or "data.pkl" in names
    if pickle:
        raise ServeError(
            f"{path.name} is a pickle: loading one can run any code of whoever wrote it, so it is not opened",
            f"seatrial export {path.name} --to pt2 --model module:factory makes a file to serve",
        )
