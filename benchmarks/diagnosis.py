"""Is the diagnosis right? Scripts bound on purpose, run through seatrial, and what their receipts say.

    python benchmarks/diagnosis.py OUT [--seconds 7] [--budget-s 190] [--config seatrial.toml] [--only NAME ...]
                                   [-- FLAGS FOR seatrial run]

    python benchmarks/diagnosis.py out -- --on docker --gpus 1
    python benchmarks/diagnosis.py out --only all_reduce -- --on docker --gpus 2
    python benchmarks/diagnosis.py out --only overhead --budget-s 60

``overhead`` runs only when it is named: how much a sampler at 10 Hz slows training beside it, in turn with none, for as
long as the budget lets it. What a sample costs by itself: sample_cost.py. Writes OUT/diagnosis.json, rewritten after
every part, OUT/diagnosis.md, and each run's receipt as OUT/NAME.receipt.json. A part that crashes, takes longer than
its time or finds none left is a line in both, not the end.
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
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from seatrial.probe import nvml
from seatrial.probe.sampler import Sampler

#: overhead: a window with or without a sampler; torch's import, the context, and a second's warm-up of either kind.
WINDOW_S = 0.5
OVERHEAD_STARTUP_S = 12.0

#: The sampler's, beside training.
INTERVAL_S = 0.1

#: What a sample has stirred up (caches, locks of the driver) may still be felt for so long.
AFTER_S = 0.005

BOUND = Path(__file__).parent / "bound"

#: Script → cause that must come out, further flags, GPUs it needs.
SCRIPTS: dict[str, tuple[str, list[str], int]] = {
    "cpu_quota": ("throttled", ["--cpus", "0.5"], 1),
    "idle": ("idle", [], 1),
    "sync_every_step": ("launch-bound", [], 1),
    "tiny_kernels": ("launch-bound", [], 1),
    "loader_in_main": ("data-bound", [], 1),
    "slow_loader": ("data-bound", [], 1),
    "pageable_copies": ("host-memory-bound", [], 1),
    "elementwise": ("memory-bandwidth-bound", [], 1),
    "big_matmul": ("compute-bound", [], 1),
    "all_reduce": ("communication-bound", ["--launcher", "torchrun"], 2),
}

#: A run beside its script: container, checks of the GPU with driver and torch, imports. Seen on an H200: 10 to 14 s.
STARTUP_S = 14.0
#: A run gets this much beside its script, then it is killed; under --cpus 0.5 everything takes twice as long.
TIMEOUT_BESIDE_S = 35.0

#: Keys of a GPU's sample that are kept; the rest is in the receipt as means.
_KEPT = ("utilization_pct", "sm_activity_pct", "tensor_activity_pct", "dram_activity_pct", "pcie_rx_bytes_per_s",
         "nvlink_tx_bytes_per_s", "power_w")  # fmt: skip


class Report:
    """What has been found so far, on disk at every moment."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.found: dict[str, Any] = {"gpus": [gpu.name for gpu in nvml.inventory().gpus], "scripts": {}}
        out.mkdir(parents=True, exist_ok=True)

    def keep(self) -> None:
        (self.out / "diagnosis.json").write_text(json.dumps(self.found, indent=1))
        (self.out / "diagnosis.md").write_text("\n".join(self._lines()) + "\n")

    def _lines(self) -> list[str]:
        lines = [
            f"GPUs: {', '.join(self.found['gpus']) or 'none'}",
            "",
            "| script | expected | found | tags | right | evidence |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for name, result in self.found["scripts"].items():
            found, tags = result.get("found") or result.get("why", "?"), ", ".join(result.get("tags", []))
            right = {True: "yes", False: "NO"}.get(result.get("right"), "not run")
            evidence = "; ".join(result.get("evidence", []))
            lines.append(f"| {name} | {result['expected']} | {found} | {tags} | {right} | {evidence} |")
        if "overhead" in self.found:
            lines += ["", f"overhead: `{json.dumps(self.found['overhead'])}`"]
        return lines


def run_script(
    name: str, seconds: float, flags: list[str], limit_s: float, config: Path | None, out: Path
) -> dict[str, Any]:
    """Run one through ``seatrial run``, keep its receipt and read it."""
    expected, own_flags, _ = SCRIPTS[name]
    command = [sys.executable, "-m", "seatrial", "run", f"{name}.py", "--trust", "--json", *flags, *own_flags]
    with tempfile.TemporaryDirectory(prefix="bound-") as folder:
        for path in (BOUND / f"{name}.py", BOUND / "device.py"):
            (Path(folder) / path.name).write_text(path.read_text())
        if config is not None:
            (Path(folder) / "seatrial.toml").write_text(config.read_text())
        ended = subprocess.run(
            [*command, "--", str(seconds)], cwd=folder, capture_output=True, text=True, timeout=limit_s
        )
        result: dict[str, Any] = {"expected": expected, "exit_code": ended.returncode}
        try:
            receipt = json.loads(ended.stdout)
        except ValueError:
            return {**result, "why": f"no receipt: {ended.stderr.strip()[-400:]}"}
        (out / f"{name}.receipt.json").write_text(json.dumps(receipt, indent=1))
        events = next((Path(folder) / ".seatrial" / "runs").glob("*/events.jsonl"), None)
        diagnosis = receipt.get("diagnosis")
        lines = events.read_text().splitlines() if events else []
        result["samples"] = [small(json.loads(line)) for line in lines if '"sample"' in line]
        result["timeline"] = [
            {key: event[key] for key in ("t", "type")} for event in map(json.loads, lines) if event["type"] != "sample"
        ]
    result["measured"] = receipt["measurements"]["gpus"]
    if diagnosis is None:
        return {**result, "why": f"no diagnosis: {receipt['exit_cause']['words']}"}
    return {
        **result,
        "found": diagnosis["cause"],
        "tags": diagnosis["tags"],
        "evidence": diagnosis["evidence"],
        "right": diagnosis["cause"] == expected,
    }


def small(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without what no rule looks at."""
    gpus = [{key: gpu[key] for key in (*_KEPT, "throttle_reasons")} for gpu in sample["gpus"]]
    return {**{key: value for key, value in sample.items() if not key.startswith("shm_")}, "gpus": gpus}


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
            command = [sys.executable, str(BOUND / "overhead.py"), str(pairs), str(WINDOW_S), str(flag)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=budget_s + 20)
        finally:
            done.set()
            thread.join()
    if ended.returncode:
        return {"why": ended.stderr.strip()[-400:]}
    found: dict[str, Any] = {"windows_s": WINDOW_S}
    for kind, both in json.loads(ended.stdout).items():
        off, on = both["off"], both["on"]
        slower = [100 * (1 - on[i] / mean(off[i : i + 2])) for i in range(len(on))]
        found[kind] = {
            "slower_pct_median": round(median(slower), 3),
            "slower_pct_mean": round(mean(slower), 3),
            "standard_error": round(stdev(slower) / len(slower) ** 0.5, 3),
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
    error = ((stdev(near) / mean(near)) ** 2 / len(near) + (stdev(far) / mean(far)) ** 2 / len(far)) ** 0.5
    return {
        "slower_pct": round(100 * share * (1 - mean(far) / mean(near)), 4),
        "standard_error": round(100 * share * error, 4),
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


def attempt(what: str, part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The part's result, or why there is none."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001  whatever it was, the other parts go on
        print(f"{what}: {error!r}", file=sys.stderr)
        return {"why": repr(error)[:400]}


def main() -> int:
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=7.0)
    parser.add_argument("--budget-s", type=float, default=190.0)
    parser.add_argument("--config", type=Path, help="a seatrial.toml for every run")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args(own)
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    end_s = time.monotonic() + options.budget_s
    report = Report(options.out)
    for name in options.only or SCRIPTS:
        left_s = end_s - time.monotonic()
        if name == "overhead":
            report.found["overhead"] = attempt("overhead", lambda left_s=left_s: overhead(left_s))
            report.keep()
            continue
        expected, _, gpus = SCRIPTS[name]
        if left_s < options.seconds + STARTUP_S:
            result: dict[str, Any] = {"why": f"not run: {left_s:.0f} s left"}
        elif not options.only and gpus > max(1, len(report.found["gpus"])):
            result = {"why": f"not run: needs {gpus} GPUs"}
        else:
            began, limit_s = time.monotonic(), min(left_s, options.seconds + TIMEOUT_BESIDE_S)
            result = attempt(
                name,
                lambda name=name, limit_s=limit_s: run_script(
                    name, options.seconds, flags, limit_s, options.config, options.out
                ),
            )
            result["took_s"] = round(time.monotonic() - began, 1)
        report.found["scripts"][name] = {"expected": expected, **result}
        report.keep()
        print(f"{name}: expected {expected}, found {result.get('found') or result.get('why')}", flush=True)
    wrong = [name for name, result in report.found["scripts"].items() if result.get("right") is False]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
