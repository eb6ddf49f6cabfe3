"""What the target said last."""

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.receipt.logs import read_output

REPORT = (
    "Traceback (most recent call last):\n"
    '  File "torch/distributed/run.py", line 1032, in <module>\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\n"
)


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        ("error: rank 3 (process 9 on vm) makes no step since step 19\nrank 3 is here:\n" + REPORT, "error: rank 3"),
        ("error: not so bad\ngoing on\nlast words\n  and more\n", "last words"),
        ("last words\n" + REPORT, "====="),
        ("╭─ Error ───────────╮\n│ Missing command.  │\n╰───────────────────╯\n", "Missing command."),
    ],
)
def test_the_last_line(tmp_path: Path, stderr: str, says: str) -> None:
    (tmp_path / "stderr.log").write_text(stderr)
    assert (read_output(tmp_path).last_line or "").startswith(says)


def test_the_function_that_raised(tmp_path: Path) -> None:
    code = "import subprocess\nsubprocess.run(['no-such-program'])\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (tmp_path / "stderr.log").write_text(ended.stderr)
    output = read_output(tmp_path)
    assert output.raised_in == "_execute_child" and (output.exception or "").startswith("FileNotFoundError: ")
