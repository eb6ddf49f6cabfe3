"""How much a sampler at 10 Hz slows training beside it, in turn with none. What a sample costs: sample_cost.py.

python benchmarks/sampler_overhead.py OUT.json [--budget-s 60]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from seatrial.common.paired import Sampled, mean, ratio
from seatrial.probe import nvml
from seatrial.probe.sampler import Sampler

#: A window with or without a sampler; torch's import, the context, and a second's warm-up of either kind.
WINDOW_S = 0.5
OVERHEAD_STARTUP_S = 12.0

#: The sampler's, beside training.
INTERVAL_S = 0.1

#: What a sample has stirred up (caches, locks of the driver) may still be felt for so long.
AFTER_S = 0.005

CHILD = Path(__file__).parent / "trained_beside_sampler.py"


def overhead(budget_s: float) -> dict[str, Any]:
    """Training beside a sampler at 10 Hz against training alone, in turn.

    Slowdown in percent, twice: each window with a sampler against the mean of the windows without before and after it;
    and, within the windows with one, groups of steps while a sample was taken against the others (around_samples).
    """
    uuids = [gpu.uuid for gpu in nvml.inventory().gpus if not gpu.mig_enabled]
    pairs = max(2, int((budget_s - OVERHEAD_STARTUP_S) / (4 * (WINDOW_S + 0.1))))
    with tempfile.TemporaryDirectory() as folder:
        flag, done = Path(folder) / "on", threading.Event()
        taken: list[tuple[float, float]] = []
        thread = threading.Thread(target=_sample_while, args=(Sampler(uuids), flag, done, taken))
        thread.start()
        try:
            command = [sys.executable, str(CHILD), str(pairs), str(WINDOW_S), str(flag)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=budget_s + 20)
        finally:
            done.set()
            thread.join()
    if ended.returncode:
        return {"why": ended.stderr.strip()[-400:]}
    found: dict[str, Any] = {"windows_s": WINDOW_S}
    for kind, both in json.loads(ended.stdout).items():
        off, on = both["off"], both["on"]
        rates = [
            (Sampled((before + after) / 2), Sampled(rate))
            for before, rate, after in zip(off, on, off[1:], strict=False)
        ]
        found[kind] = {
            "slower_pct": [round(100 * (1 - times), 3) for times in reversed(ratio(rates))],
            "windows": len(on),
            "around_samples": around_samples(both["groups"], taken),
            "steps_per_s_off": [round(rate, 1) for rate in off],
            "steps_per_s_on": [round(rate, 1) for rate in on],
        }
    return found


def around_samples(groups: list[list[float]], taken: list[tuple[float, float]]) -> dict[str, Any]:
    """What the samples cost the steps that ran while they were taken or AFTER_S later, as a share of all time.

    Compared with the steps half an interval later, where no sample was: both come from the same seconds, so drifting
    clocks and neighbours do not count, nor that a long group is hit more often than a short one.
    """
    later = [(start + INTERVAL_S / 2, end + INTERVAL_S / 2) for start, end in taken]
    beside, without = ([group for group in groups if _touched(group, times)] for times in (taken, later))
    near = [ended - begun for begun, ended in beside if [begun, ended] not in without]
    far = [ended - begun for begun, ended in without if [begun, ended] not in beside]
    if len(near) < 5 or len(far) < 5:
        return {"why": f"{len(near)} groups beside samples, {len(far)} others"}
    share = sum(near) / sum(ended - begun for begun, ended in groups)
    slower = mean([100 * share * (1 - fmean(far) / each) for each in near])
    return {
        "slower_pct": [round(each, 4) for each in slower],
        "groups_near": len(near),
        "groups_far": len(far),
    }


def _touched(group: list[float], times: list[tuple[float, float]]) -> bool:
    return any(start < group[1] and end + AFTER_S > group[0] for start, end in times)


def _sample_while(sampler: Sampler, flag: Path, done: threading.Event, taken: list[tuple[float, float]]) -> None:
    while not done.wait(INTERVAL_S):
        if flag.exists():
            begun_s = time.monotonic()
            sampler.sample()
            taken.append((begun_s, time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=60.0)
    options = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    options.out.write_text(json.dumps(overhead(options.budget_s), indent=1))


if __name__ == "__main__":
    main()
