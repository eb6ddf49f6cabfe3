"""Model files that the target saved on a volume."""

import os
import time
from pathlib import Path

from seatrial.agent.saved_files import models


def test_new_models_and_nothing_else(tmp_path: Path) -> None:
    began = time.time()
    (tmp_path / "deep").mkdir()
    (tmp_path / ".seatrial" / "checkpoints").mkdir(parents=True)
    for name, data in [
        ("deep/a.safetensors", b"12345"),
        ("b.PTH", b"1"),
        ("notes.txt", b"x"),
        ("old.pt", b"x"),
        (".seatrial/checkpoints/step-1.pt", b"x"),
    ]:
        (tmp_path / name).write_bytes(data)
    os.utime(tmp_path / "old.pt", (began - 60, began - 60))
    os.utime(tmp_path / "b.PTH", (began + 5, began + 5))
    assert models(str(tmp_path), began) == [{"path": "b.PTH", "bytes": 1}, {"path": "deep/a.safetensors", "bytes": 5}]


def test_no_folder_no_models(tmp_path: Path) -> None:
    assert models(str(tmp_path / "nowhere"), 0.0) == []
