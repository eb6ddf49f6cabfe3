"""Training gives the same bits as the reference does, whatever moved in between."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
from unit.recipes.conftest import bars

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_losses_weights_and_states_equal_the_references_to_the_bit(tmp_path: Path) -> None:
    commit = (HERE / "REFERENCE").read_text().strip()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"this clone lacks the reference {commit[:12]}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as source:
        source.extractall(tmp_path / "archive", filter="data")
    data = tmp_path / "data"
    (data / "bars").mkdir(parents=True)
    bars(data / "bars", 16, (96, 30))
    (data / "messages").mkdir()
    lines = [f"ham\tsee you at {n} then, love" if n % 2 else f"spam\tWINNER claim prize {n} now" for n in range(64)]
    (data / "messages" / "SMSSpamCollection").write_text("\n".join(lines) + "\n")
    found = {}
    for name, source in (("reference", tmp_path / "archive" / "src"), ("this tree", ROOT / "src")):
        out = tmp_path / name.replace(" ", "-")
        path = f"{source}:{HERE.parent}"
        words = [sys.executable, str(HERE / "twin.py"), str(data), str(out)]
        ended = subprocess.run(
            words,
            env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        found[name] = json.loads((out / "digests.json").read_text())
    assert found["this tree"] == found["reference"]
    assert len(found["reference"]) >= 12
