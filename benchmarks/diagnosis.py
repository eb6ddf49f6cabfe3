"""Is the diagnosis right? Scripts bound on purpose, run through seatrial, and what their receipts say.

    python benchmarks/diagnosis.py OUT [--seconds 7] [--budget-s 200] [--config seatrial.toml] [--only NAME ...]
                                   [-- FLAGS FOR seatrial run]

    python benchmarks/diagnosis.py out -- --on docker --image hostlike --gpus 1
    python benchmarks/diagnosis.py out --only all_reduce -- --on docker --image hostlike --gpus 2

Also: what a sample costs (CPU time of this process, by part), and how much a sampler at 10 Hz slows training beside
it. Writes OUT/diagnosis.json, rewritten after every part, and OUT/diagnosis.md. A part that crashes or finds no time
left is a line in both, not the end.
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
from statistics import mean, median
from typing import Any

from seatrial.probe import gpm, nvml
from seatrial.probe.sampler import Sampler

BOUND = Path(__file__).parent / "bound"

#: Script → cause that must come out, further flags, GPUs it needs.
SCRIPTS: dict[str, tuple[str, list[str], int]] = {
    "big_matmul": ("compute-bound", [], 1),
    "elementwise": ("memory-bandwidth-bound", [], 1),
    "tiny_kernels": ("launch-bound", [], 1),
    "slow_loader": ("data-bound", [], 1),
    "sync_every_step": ("launch-bound", [], 1),
    "loader_in_main": ("data-bound", [], 1),
    "pageable_copies": ("host-memory-bound", [], 1),
    "cpu_quota": ("throttled", ["--cpus", "0.5"], 1),
    "idle": ("idle", [], 1),
    "all_reduce": ("communication-bound", ["--launcher", "torchrun"], 2),
}

#: A run beside its script: container, checks of the GPU with driver and torch, imports. Seen on an H200: 10 to 14 s.
STARTUP_S = 14.0


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
        for part in ("sampler", "overhead"):
            if part in self.found:
                lines += ["", f"{part}: `{json.dumps(self.found[part])}`"]
        return lines


def run_script(name: str, seconds: float, flags: list[str], limit_s: float, config: Path | None) -> dict[str, Any]:
    """Run one through ``seatrial run`` and read its receipt."""
    expected, own_flags, _ = SCRIPTS[name]
    command = [sys.executable, "-m", "seatrial", "run", f"{name}.py", "--json", *flags, *own_flags]
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
        events = next((Path(folder) / ".seatrial" / "runs").glob("*/events.jsonl"), None)
        diagnosis = receipt.get("diagnosis")
        result["samples"] = [
            json.loads(line) for line in (events.read_text().splitlines() if events else []) if '"sample"' in line
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


def sampler_cost(seconds: float = 4.0) -> dict[str, Any]:
    """CPU and wall milliseconds a sample of each GPU: at 10 Hz as it is used, and of its parts alone."""
    uuids = [gpu.uuid for gpu in nvml.inventory().gpus if not gpu.mig_enabled]
    if not uuids:
        return {"why": "no GPU: " + (nvml.inventory().error or "")}
    sampler = Sampler(uuids)
    sampler.sample()
    cpu_ms, wall_ms, with_gpm = [], [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        before_cpu, before = time.process_time(), time.perf_counter()
        taken = sampler.sample()
        cpu_ms.append((time.process_time() - before_cpu) * 1e3 / len(uuids))
        wall_ms.append((time.perf_counter() - before) * 1e3 / len(uuids))
        with_gpm.append(taken["gpus"][0]["sm_activity_pct"] is not None)
    return {
        "gpus": len(uuids),
        "samples": len(cpu_ms),
        "cpu_ms_mean_at_10_hz": mean(cpu_ms),
        "cpu_ms_with_gpm": mean([ms for ms, read in zip(cpu_ms, with_gpm, strict=True) if read] or [0.0]),
        "cpu_ms_without_gpm": mean([ms for ms, read in zip(cpu_ms, with_gpm, strict=True) if not read] or [0.0]),
        "wall_ms_median": median(wall_ms),
        "wall_ms_max": max(wall_ms),
        "parts_ms": parts(uuids[0]),
    }


def parts(uuid: str) -> dict[str, float]:
    """CPU milliseconds of each call on the GPU, mean of 20; the GPM comparison also by how many metrics it is asked."""
    pynvml = nvml.load()
    sampler = Sampler([uuid])
    gpu = sampler._gpus[uuid]
    calls: dict[str, Callable[[], Any]] = {
        "fast": gpu.sample,
        "counters": gpu.counters,
        "service": gpu.service,
        "processes": gpu.processes,
        "xids": sampler.xids,
        "container": sampler._container,
    }
    found = {name: _mean_ms(call) for name, call in calls.items()}
    whole, usual_s = dict(gpm.GPM_METRICS), gpm.MIN_INTERVAL_S
    try:
        gpm.MIN_INTERVAL_S = 0.0
        for count in (1, 4, 6, len(whole)):
            gpm.GPM_METRICS.clear()
            gpm.GPM_METRICS.update(list(whole.items())[:count])
            reader = gpm.Gpm(pynvml, nvml.gpu_handle(pynvml, uuid))
            time.sleep(0.12)
            found[f"gpm_{count}_metrics"] = _mean_ms(reader.read, pause_s=0.11)
    finally:
        gpm.GPM_METRICS.clear()
        gpm.GPM_METRICS.update(whole)
        gpm.MIN_INTERVAL_S = usual_s
    return found


def _mean_ms(call: Callable[[], Any], times: int = 8, pause_s: float = 0.0) -> float:
    spent = 0.0
    for _ in range(times):
        before = time.process_time()
        call()
        spent += time.process_time() - before
        time.sleep(pause_s)
    return round(spent / times * 1e3, 4)


def overhead(windows: int, window_s: float) -> dict[str, Any]:
    """Training beside a sampler at 10 Hz against training alone, in turn; slowdown in percent by the medians."""
    uuids = [gpu.uuid for gpu in nvml.inventory().gpus if not gpu.mig_enabled]
    with tempfile.TemporaryDirectory() as folder:
        flag, done = Path(folder) / "on", threading.Event()
        thread = threading.Thread(target=_sample_while, args=(Sampler(uuids), flag, done))
        thread.start()
        try:
            command = [sys.executable, str(BOUND / "overhead.py"), str(windows), str(window_s), str(flag)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60 + 5 * windows * window_s)
        finally:
            done.set()
            thread.join()
    if ended.returncode:
        return {"why": ended.stderr.strip()[-400:]}
    rates = json.loads(ended.stdout)
    slower = {kind: 100 * (1 - median(both["on"]) / median(both["off"])) for kind, both in rates.items()}
    spread = {kind: 100 * (max(both["off"]) / min(both["off"]) - 1) for kind, both in rates.items()}
    return {"slower_pct": slower, "spread_of_off_pct": spread, "rates": rates}


def _sample_while(sampler: Sampler, flag: Path, done: threading.Event) -> None:
    while not done.wait(0.1):
        if flag.exists():
            sampler.sample()


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
    parser.add_argument("--budget-s", type=float, default=200.0)
    parser.add_argument("--config", type=Path, help="a seatrial.toml for every run")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args(own)
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    end_s = time.monotonic() + options.budget_s
    report = Report(options.out)
    if not options.only:
        report.found["sampler"] = attempt("sampler", sampler_cost)
        report.keep()
        report.found["overhead"] = attempt("overhead", lambda: overhead(4, 0.8))
        report.keep()
    for name in options.only or SCRIPTS:
        expected, _, gpus = SCRIPTS[name]
        left_s = end_s - time.monotonic()
        if left_s < options.seconds + STARTUP_S:
            result: dict[str, Any] = {"why": f"not run: {left_s:.0f} s left"}
        elif not options.only and gpus > max(1, len(report.found["gpus"])):
            result = {"why": f"not run: needs {gpus} GPUs"}
        else:
            began = time.monotonic()
            result = attempt(
                name, lambda name=name, left_s=left_s: run_script(name, options.seconds, flags, left_s, options.config)
            )
            result["took_s"] = round(time.monotonic() - began, 1)
        report.found["scripts"][name] = {"expected": expected, **result}
        report.keep()
        print(f"{name}: expected {expected}, found {result.get('found') or result.get('why')}", flush=True)
    wrong = [name for name, result in report.found["scripts"].items() if result.get("right") is False]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
