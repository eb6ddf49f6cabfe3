"""Write golden files anew: ``python tests/golden/record.py [PYTHON]``, by default with this interpreter's seatrial.

A changed golden file is committed alone, with a message that explains each difference.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fork_server
from golden.capture import HERE, Capture, capture_all, dumped


def main(python: str) -> None:
    """Capture everything with the seatrial of this interpreter, and write structure and prose."""

    def run(words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        if python == sys.executable:
            return fork_server.server().run(words, cwd, environ, 120)
        argv = [python, "-m", "seatrial", *words]
        caught = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 120}
        return subprocess.run(argv, cwd=cwd, env=environ, **caught)

    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        capture = Capture(Path(folder) / "root", run, python)
        for area, found in capture_all(capture):
            (HERE / "structure" / f"{area}.json").write_text(dumped(found))
            print(area, len(found))
        for area, sentences in capture.sentences.items():
            (HERE / "prose" / f"{area}.txt").write_text("\n".join(sorted(sentences)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:] or [sys.executable])
