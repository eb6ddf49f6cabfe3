"""What a trial costs beyond its script's own time: a sweep of trials that sleep a second, and plain ``docker run``.

    python benchmarks/search_overhead.py [TRIALS] [BACKEND]

A trial's whole time is from one end to the next, so that asking, planning, starting, following and judging
are in it. The first, which builds the image, does not count. The machine's load stands beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from seatrial.runs.store import RunStore
from seatrial.search.search import find_study
from seatrial.system.host import Host

SCRIPT = "import argparse, time\np = argparse.ArgumentParser(); p.add_argument('--a'); p.parse_args(); time.sleep(1)\n"
IMAGE = "python:3.11-slim-bookworm"


def main() -> None:
    trials = int(sys.argv[1]) if sys.argv[1:] else 8
    backend = sys.argv[2] if sys.argv[2:] else "docker"
    with tempfile.TemporaryDirectory(prefix="search-overhead-") as folder:
        project = Path(folder)
        (project / "train.py").write_text(SCRIPT)
        (project / "seatrial.toml").write_text('[image]\nbuild_network = "host"\n')
        words = [sys.executable, "-m", "seatrial", "sweep", "train.py", "--on", backend, "--gpus", "none", "--trust"]
        subprocess.run([*words, "--set", f"a=int:1..{trials}", "--study", "s"], cwd=project, check=True)
        ended = find_study(RunStore(project, Host()), "s").trials()
    whole = [after.ended_at - before.ended_at for before, after in pairwise(ended)]  # type: ignore[operator]
    own = [trial.ending.measured["seconds"] for trial in ended[1:] if trial.ending]
    beyond = sorted(all_s - own_s for all_s, own_s in zip(whole, own, strict=True))
    print(f"beyond the script's own time: median {statistics.median(beyond):.2f} s, least {beyond[0]:.2f} s a trial")
    if backend == "docker":
        plain = sorted(_plain() for _ in range(trials - 1))
        print(f"docker run of true: median {statistics.median(plain):.2f} s, least {plain[0]:.2f} s")
    print(f"load of the last minute {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _plain() -> float:
    begun = time.monotonic()
    subprocess.run(["docker", "run", "--rm", "--network", "none", IMAGE, "true"], check=True)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
