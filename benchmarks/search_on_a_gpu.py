"""Trials that share a GPU: leases of halves, memory limits, and that nothing is left on the GPU between trials.

    python benchmarks/search_on_a_gpu.py OUT        # about three minutes; OUT/search_on_a_gpu.json and .txt

Without Optuna, as on machines without a network, the searches are random and nothing is pruned. Without a GPU the same
runs on the CPU, so that the script itself can be tried.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seatrial.probe.nvml import NvmlError, inventory, load
from seatrial.runs.store import RunStore
from seatrial.search.search import find_study
from seatrial.search.trial import Trial
from seatrial.system.host import Host

#: Holds 2 GB of the GPU and computes for some seconds; reports a loss that falls to what the setting allows.
SCRIPT = """
import argparse, json, math, os, time, torch
p = argparse.ArgumentParser(); p.add_argument("--lr", type=float, required=True); a = p.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
held = torch.empty(2 * 10**9 if device == "cuda" else 10**7, dtype=torch.uint8, device=device)
x = torch.randn(4096 if device == "cuda" else 256, 4096 if device == "cuda" else 256, device=device)
for step in range(1, 7):
    until = time.monotonic() + 1
    while time.monotonic() < until:
        y = x @ x
        if device == "cuda": torch.cuda.synchronize()
    loss = abs(math.log10(a.lr) + 2.5) + 1 / step
    with open(os.environ["SEATRIAL_EVENTS"], "a") as file:
        file.write(json.dumps({"epoch": step, "loss": loss}) + chr(10))
"""
TIMEOUT_S = 240


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="search-gpu-") as folder:
        bench = Bench(Path(folder), out)
        for part in (bench.halves, bench.by_memory, bench.leases, bench.killed):
            try:
                part()
            except Exception as error:  # noqa: BLE001  # the other parts still tell something
                bench.told[part.__name__] = {"error": repr(error)}
            (out / "search_on_a_gpu.json").write_text(json.dumps(bench.told, indent=1))


class Bench:
    def __init__(self, project: Path, out: Path) -> None:
        self.project, self.log = project, out / "search_on_a_gpu.txt"
        (project / "train.py").write_text(SCRIPT)
        self.gpu = bool(inventory().gpus)
        optuna = importlib.util.find_spec("optuna") is not None
        self.told: dict[str, Any] = {"gpu": self.gpu, "optuna": optuna, "used_bytes_at_first": used_bytes()}
        search = ["--search", "tpe"] if optuna else ["--search", "random"]
        self.sweep = ["sweep", "train.py", "--on", "local", "--trust", *search, "--metric", "loss:min"]
        self.sweep += ["--set", "lr=log:1e-5..1e-1"]

    def halves(self) -> None:
        """Two trials at once on one GPU."""
        flags = ["--gpus", "0.5", "--parallel", "auto"] if self.gpu else ["--gpus", "none", "--parallel", "2"]
        self._search("halves", *flags, "--trials", "6")

    def by_memory(self) -> None:
        """As many as 40 GB fit."""
        flags = ["--gpu-memory", "40GB", "--parallel", "auto"] if self.gpu else ["--gpus", "none"]
        self._search("by_memory", *flags, "--trials", "3")

    def leases(self) -> None:
        """Two halves are held, and a third is refused in one sentence."""
        share = "0.5" if self.gpu else "none"
        words = ["run", "train.py", "--on", "local", "--trust", "--gpus", share, "--detach"]
        codes = [self._seatrial(*words, "--", "--lr", "0.1")[0] for _ in range(2)]
        code, said = self._seatrial(*words, "--", "--lr", "0.1")
        self.told["leases"] = {"first_two": codes, "third": code, "said": said[-500:]}
        time.sleep(12)
        self._seatrial("runs", "ls")

    def killed(self) -> None:
        """kill -9 of the searcher while trials run, then the same command: the study ends, and the GPU is empty."""
        flags = ["--gpus", "0.5", "--parallel", "2"] if self.gpu else ["--gpus", "none", "--parallel", "2"]
        words = [*self.sweep, *flags, "--trials", "4", "--study", "killed"]
        searcher = subprocess.Popen([sys.executable, "-m", "seatrial", *words], cwd=self.project)
        time.sleep(9)
        searcher.send_signal(signal.SIGKILL)
        searcher.wait()
        self._search("killed", *flags, "--trials", "4", study="killed")

    def _search(self, name: str, *flags: str, study: str | None = None) -> None:
        before, begun = used_bytes(), time.monotonic()
        code, said = self._seatrial(*self.sweep, *flags, "--study", study or name)
        trials = find_study(RunStore(self.project, Host(Host())), study or name).trials()
        receipts = [self._receipt(trial.run_id) for trial in trials]
        self.told[name] = {
            "exit_code": code,
            "seconds": round(time.monotonic() - begun, 1),
            "states": [trial.state for trial in trials],
            "at_once": at_once(trials),
            "used_bytes_before": before,
            "used_bytes_after": used_bytes(),
            "gpu_memory": [one.get("measurements", {}).get("gpu_memory") for one in receipts],
            "gpus": [[gpu["uuid"] for gpu in one.get("header", {}).get("gpus", [])] for one in receipts],
            "causes": [one.get("exit_cause", {}).get("words") for one in receipts],
            "left_behind": [line for line in said.splitlines() if "of the ended run is still on" in line],
        }

    def _receipt(self, run_id: str | None) -> dict[str, Any]:
        path = self.project / ".seatrial" / "runs" / (run_id or "-") / "receipt.json"
        loaded: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return loaded

    def _seatrial(self, *words: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "seatrial", *words]
        try:
            ended = subprocess.run(argv, cwd=self.project, capture_output=True, text=True, timeout=TIMEOUT_S)
            code, said = ended.returncode, ended.stdout + ended.stderr
        except subprocess.TimeoutExpired as error:
            code, said = 124, str(error)
        with self.log.open("a") as file:
            file.write(f"$ seatrial {' '.join(words)}   → {code}\n{said}\n")
        return code, said


def used_bytes() -> list[int]:
    """Memory in use of each GPU, as NVML tells it."""
    try:
        pynvml = load()
    except NvmlError:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]


def at_once(trials: list[Trial]) -> int:
    """Trials that ran at the same time, at most."""
    spans = [(trial.begun_at, trial.ended_at) for trial in trials if trial.begun_at and trial.ended_at]
    return max((sum(b <= one < e for b, e in spans) for one, _ in spans), default=0)


if __name__ == "__main__":
    main()
