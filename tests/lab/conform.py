"""Runs the scripts of tests/lab/conformance with and without the hook: output, weights and identities must not differ.

python tests/lab/conform.py [TEXT]

Windows place their wrappers on tensors as they do beside a GPU. Scripts print what they see, a digest of their weights
in the end; what two runs of them print is the same to the letter.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab import run_all

HERE = Path(__file__).parent / "conformance"


def main(only: str = "") -> int:
    """Compare every script's runs; returns the number that differ."""
    common = (HERE / "common.txt").read_text()
    scripts = {path.stem: common + path.read_text() for path in sorted(HERE.glob("*.py")) if only in path.stem}
    folder, differing = Path(tempfile.mkdtemp(prefix="conform-")), 0
    try:
        (folder / "with").mkdir()
        (folder / "without").mkdir()
        plain = run_all(scripts, folder / "without", 6, measured=False)
        measured = run_all(scripts, folder / "with", 6, measured=True, as_on_a_gpu=True)
    finally:
        shutil.rmtree(folder)
    for name in scripts:
        one, other = (_printed(run[name]) for run in (plain, measured))
        stopped = [line for line in measured[name]["lines"] if "hook_stopped" in line]
        seen = any("anatomy" in line for line in measured[name]["lines"])
        same = one == other and not stopped
        differing += not same
        print(f"{'same' if same else 'DIFFERS'} {name}{'' if seen else ' (no steps seen)'} {stopped or ''}")
        for a, b in zip(one, other, strict=True) if one != other else ():
            if a != b:
                print(f"  without: {str(a)[-700:]}\n  with:    {str(b)[-700:]}")
    return differing


def _printed(result: Mapping[str, Any]) -> list[object]:
    """Output and exit code, without times of the profiler and the folder's name."""
    kept = [line for line in result["stderr"].splitlines() if not line.startswith("USDT:")]
    error = "\n".join(kept).replace("/without/", "/with/")
    return [result["stdout"], error, result["exit_code"]]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
