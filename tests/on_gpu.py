"""Run the GPU tests in parts of at most 150 s, each in its own interpreter, with a line for each failure.

    python tests/on_gpu.py [PATH ...] [--part-s 150]

A bare machine needs seatrial's own dependencies, hypothesis, syrupy, and pytest with its plugins timeout and xdist; no
fork server. A test that hangs ends its part, and the next part begins after it. Exits with 1 if a test failed
or hung.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: A line of ``pytest -v``: the test, and its result.
_RESULT = re.compile(r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", re.MULTILINE)


def main() -> int:
    """Collect, run file by file, and print counts, seconds and failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=marked(), help="files; without, those with tests marked gpu")
    parser.add_argument("--part-s", type=float, default=150.0, help="seconds for one part")
    options = parser.parse_args()
    collected = pytest("--collect-only", "-m", "gpu", *options.paths, limit_s=options.part_s)
    tests = [line for line in collected.splitlines() if line.startswith("tests/") and "::" in line]
    if not tests:
        sys.exit(f"No GPU test was collected:\n{collected}")
    results: dict[str, str] = {}
    for file in dict.fromkeys(test.partition("::")[0] for test in tests):
        waiting = [test for test in tests if test.partition("::")[0] == file]
        while waiting:
            begun = time.monotonic()
            output = pytest("-vv", "-rs", "--tb=short", *waiting, limit_s=options.part_s)
            found = dict(_RESULT.findall(output))
            reached = [test for test in waiting if test in found]
            results.update({test: found[test] for test in reached})
            waiting = [test for test in waiting if test not in found]
            print(f"{file}: {len(reached)} in {time.monotonic() - begun:.0f} s", flush=True)
            if "FAILED" in found.values() or "ERROR" in found.values() or not reached:
                print(output[-6000:], flush=True)
            if waiting:  # the first of them hung, or the interpreter ended in it
                results[waiting.pop(0)] = "HUNG"
    for test, result in results.items():
        if result not in ("PASSED", "SKIPPED"):
            print(f"{result} {test}")
    counts = {result: list(results.values()).count(result) for result in dict.fromkeys(results.values())}
    print(", ".join(f"{number} {result.lower()}" for result, number in counts.items()))
    return int(not {"PASSED", "SKIPPED"}.issuperset(counts))


def marked() -> list[str]:
    """List the files whose tests are marked, relative to the repository; others may need packages that are missing."""
    files = sorted(HERE.rglob("test_*.py"))
    return [str(file.relative_to(HERE.parent)) for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


def pytest(*words: str, limit_s: float) -> str:
    """Return the output of pytest, which ends after ``limit_s`` seconds."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", *words]
    env = {**os.environ, "SEATRIAL_TEST_UNFORKED": "1", "PYTHONUNBUFFERED": "1"}
    options = {"cwd": HERE.parent, "env": env, "stdin": subprocess.DEVNULL, "text": True}
    try:
        ended = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s, **options)
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace")
    return str(ended.stdout)


if __name__ == "__main__":
    sys.exit(main())
