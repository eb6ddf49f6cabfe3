"""Runs scripts with a planted bottleneck, as they are and mended, and compares the diagnosis with the gain of mending.

python tests/lab/bottlenecks.py OUT [--seconds 2.4] [--budget-s 390] [--only TEXT ...] [--part 1/2] [--rates FILE]
python tests/lab/bottlenecks.py OUT --judge [--write benchmarks/results/planted.json]

An original script runs alone, under the hook and while the GPU is sampled; mended ones that compute little run several
at a time. OUT/planted.jsonl gets a line of measurements for each script as it ends. --judge runs nothing and judges
all such files below OUT; measurements without a GPU are judged as if the model had run on one.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "src")]

from planted import Planted, planted  # noqa: E402

from lab import _be_the_script, _template  # noqa: E402

#: Time limit of a script; the share of the seconds for which mended ones run, and how many run at a time.
LIMIT_S, MENDED_PART = 40.0, 0.5
LANES = {"python-bound": 4}
#: Seconds between two readings of the GPU.
SAMPLES_S = 0.25
#: A predicted gain is right within this factor of the measured one.
WITHIN = 1.5
#: A model on a GPU as it is simulated: kernels run for this part of the time that the host takes to launch them, on this
#: part of the chip. Measured with small networks on an H200.
SIMULATED_UTILIZATION, SIMULATED_SM = 0.4, 0.1

COLUMNS = ["script", "bound by, on purpose", "found", "first fix", "at most", "measured", "right"]


class Runner:
    """Starts scripts as forks of this process, which has imported torch, or afresh where a fork finds no GPU."""

    def __init__(self, folder: Path) -> None:
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counting GPUs otherwise initialises CUDA, which forks lose
        import torch
        import torch._dynamo
        import torch.utils.data

        from seatrial.agent.hook import install

        self.folder, self.hook = folder, folder / "hooks"
        self.env = {**os.environ, "OMP_NUM_THREADS": "1"}
        install.install(str(self.hook), self.env, None, measure_steps=True)
        gc.collect()
        gc.freeze()  # a script that collects garbage finds its own
        self.forks = os.environ.get("LAB_FRESH") is None and not (torch.version.cuda and self._fork_finds_no_gpu())

    def _fork_finds_no_gpu(self) -> bool:
        import torch

        if (pid := os.fork()) == 0:
            code = 1
            try:
                code = int(torch.cuda.is_available() and not torch.zeros(1, device="cuda").cpu().numel())
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1] != 0

    def start(self, script: str, seconds: float, *, measured: bool) -> tuple[int, Path]:
        home = Path(tempfile.mkdtemp(dir=self.folder))
        (home / "train.py").write_text(script)
        env = self.env if measured else {**os.environ, "OMP_NUM_THREADS": "1"}
        if self.forks:
            if (pid := os.fork()) == 0:
                _be_the_script(home, self.hook if measured else None, env, False, str(seconds))
            return pid, home
        with (home / "stdout.log").open("wb") as out, (home / "stderr.log").open("wb") as err:
            command = [sys.executable, "train.py", str(seconds)]
            env = {**env, "SEATRIAL_EVENTS": str(home / "events.jsonl")}
            return subprocess.Popen(command, cwd=home, env=env, stdout=out, stderr=err).pid, home

    def read(self, home: Path) -> dict[str, Any]:
        out, err = ((home / f"{name}.log").read_text(errors="replace") for name in ("stdout", "stderr"))
        counted = next(
            (json.loads(line)["planted"] for line in out.splitlines() if line.startswith('{"planted"')), None
        )
        events = home / "events.jsonl"
        lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        shutil.rmtree(home)
        return {"counted": counted, "lines": lines, "stdout": out[-1000:], "stderr": err[-1500:]}


def measure(runner: Runner, script: str, seconds: float, uuids: Sequence[str]) -> dict[str, Any]:
    """Run one script alone, under the hook."""
    from seatrial.probe.sampler import Sampler

    began, samples, contexts = time.time(), [], False
    pid, home = runner.start(script, seconds, measured=True)
    sampler = Sampler(uuids, gpm_interval_s=0.5)
    sampler.mains.add(pid)
    due = began + SAMPLES_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        now = time.time()
        if now >= due:
            samples.append({"t": now, **sampler.sample()})
            contexts = contexts or any(sampler.compute_processes(uuid) for uuid in uuids)
            due = now + SAMPLES_S
        if now - began > LIMIT_S:
            os.kill(pid, 9)
        time.sleep(0.01)
    sampler.close()
    code = os.waitstatus_to_exitcode(status)
    return {**runner.read(home), "script": script, "began_s": began, "ended_s": time.time(), "exit_code": code, "samples": samples,
            "contexts": contexts}  # fmt: skip


def mended(runner: Runner, shapes: Mapping[str, Planted], seconds: float, until: float) -> dict[str, dict[str, Any]]:
    """Run mended scripts of one kind without the hook, in parallel while they do not disturb each other."""
    waiting, running, found = list(shapes.items()), {}, {}
    while waiting or running:
        lanes = min((LANES.get(shapes[name].causes[0], 1) for name, _ in waiting[:1]), default=1)
        while waiting and len(running) < (lanes if (os.cpu_count() or 1) >= 12 else 1) and time.time() < until:
            name, shape = waiting.pop(0)
            pid, home = runner.start(shape.mended, seconds, measured=False)
            running[pid] = (name, home, time.time())
        if not running:
            break
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            name, home, _ = running.pop(pid)
            found[name] = {key: value for key, value in runner.read(home).items() if key != "lines"}
        for late in [pid for pid, (_, _, began) in running.items() if time.time() - began > LIMIT_S]:
            os.kill(late, 9)
        time.sleep(0.01)
    return found


def run(options: argparse.Namespace) -> None:
    """Run all scripts, originals first; write a line of the file for each."""
    end = time.time() + options.budget_s
    part, parts = map(int, options.part.split("/"))
    shapes = {
        name: shape for name, shape in planted().items() if not options.only or any(t in name for t in options.only)
    }
    shapes = dict(list(shapes.items())[part - 1 :: parts])
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    try:
        runner = Runner(folder)
        gpus = _gpus()
        print(f"{len(shapes)} shapes, forks: {runner.forks}, GPUs: {[gpu['name'] for gpu in gpus]}", flush=True)
        with (options.out / "planted.jsonl").open("a") as file:

            def keep(name: str, form: str, result: Mapping[str, Any]) -> None:
                file.write(json.dumps({"name": name, "form": form, "gpus": gpus, **result}) + "\n")
                file.flush()
                counted = result["counted"] or {"examples_per_s": 0.0, "steps": 0}
                why = "" if result["counted"] else result["stderr"].strip()[-300:]
                print(f"{time.time() - end + options.budget_s:5.0f} s  {name} {form}: {counted['steps']} steps,"
                      f" {counted['examples_per_s']:,.0f} examples/s {why}", flush=True)  # fmt: skip

            for name, shape in shapes.items():
                if time.time() < end:
                    keep(name, "as it is", measure(runner, shape.script, options.seconds, [g["uuid"] for g in gpus]))
            known = (
                {json.loads(line)["name"] for line in options.rates.read_text().splitlines()} if options.rates else ()
            )
            groups: dict[str, dict[str, Planted]] = {}
            for name, shape in shapes.items():
                if name not in known:
                    groups.setdefault(shape.causes[0], {})[name] = shape
            for group in groups.values():
                for name, result in mended(runner, group, options.seconds * MENDED_PART, end).items():
                    keep(name, "mended", result)
    finally:
        shutil.rmtree(folder)


def _gpus() -> list[dict[str, Any]]:
    from seatrial.probe import nvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [{"index": 0, "uuid": gpu.uuid, "name": gpu.name, "memory_bytes": gpu.memory_bytes,
              "compute_capability": gpu.compute_capability, "minor": 0} for gpu in nvml.inventory().gpus]  # fmt: skip
    return found[int(visible) :][:1] if visible and visible.isdigit() else found[:1]


def judged(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the receipt of an original script."""
    from judged_again import H200, judged_again

    plan, around = json.loads(json.dumps(_template()[0])), _template()[1]
    simulated = not result["gpus"]
    gpus = result["gpus"] or [json.loads(H200.model_dump_json())]
    uuid, code = gpus[0]["uuid"], result["exit_code"]
    plan["agent"] |= {"gpu_mode": "required", "gpus": gpus}
    lines, samples = result["lines"], result["samples"]
    if simulated:
        lines, samples = _simulated(lines, samples, uuid)
    events: list[dict[str, Any]] = []
    for each in around:
        if each["type"] == "sample":
            continue
        began = {**each, "t": result["began_s"]}
        if each["type"] == "target.exited":
            context = {"type": "gpu.context", "source": "agent", "uuid": uuid, "pid": 1, "evidence": "memory"}
            events += [{**context, "t": result["began_s"] + 0.2, "memory_bytes": 1}] * (simulated or result["contexts"])
            events += [{**sample, "type": "sample", "source": "agent"} for sample in samples]
            events += [{**line, "type": "step", "source": "target"} for line in lines]
            seconds = result["ended_s"] - result["began_s"]
            began |= {"t": result["ended_s"], "seconds": seconds, "exit_code": code}
        elif each["type"] in ("agent.finished", "host.state"):
            began |= {"t": result["ended_s"] + 0.1, "exit_code": code}
            if each["type"] == "agent.finished":
                began["contexts"] = [uuid]
        events.append({key: value for key, value in began.items() if key not in ("_seq", "_chain")})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(result["script"])
        files = {"plan.json": json.dumps(plan).encode(), "events.jsonl": "\n".join(map(json.dumps, events)).encode(),
                 "stdout.log": result["stdout"].encode(), "stderr.log": result["stderr"].encode()}  # fmt: skip
        return judged_again(files, Path(folder))


def _simulated(
    lines: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]], uuid: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write simulated GPU samples: kernels run only while the model's parts run."""
    moved = json.loads(json.dumps(lines).replace('"device": "cpu"', '"device": "cuda"'))
    seconds = {"all": 1e-9, "model": 0.0}
    for line in moved:
        window = line.get("anatomy", {}).get("window", {})
        regions = window.get("regions", {})
        spans = {key: regions.get(key, 0.0) for key in ("forward", "backward", "optimizer")}
        if window:  # a GPU that waits for the host does so in the phase of the host
            window["gpu"] = {"data": sum(regions.values()) - sum(spans.values()), **spans}
        seconds["all"] += sum(regions.values())
        seconds["model"] += sum(spans.values())
    busy = 100 * SIMULATED_UTILIZATION * seconds["model"] / seconds["all"]
    gpu = {"uuid": uuid, "utilization_pct": busy, "sm_activity_pct": busy * SIMULATED_SM, "tensor_activity_pct": 0.1,
           "dram_activity_pct": 0.5, "fp32_activity_pct": 0.5, "throttle_reasons": []}  # fmt: skip
    return moved, [{**sample, "gpus": [gpu]} for sample in samples]


def compare(*places: Path) -> dict[str, dict[str, Any]]:
    """Return the expected and found causes, the advice and the gain of each shape."""
    kept: dict[str, dict[str, Any]] = {}
    files = [path for place in places for path in (sorted(place.rglob("planted.jsonl")) if place.is_dir() else [place])]
    for line in (line for path in files for line in path.read_text().splitlines()):
        result = json.loads(line)
        forms = kept.setdefault(result["name"], {})
        if _rate(result) >= _rate(forms.get(result["form"])):  # the least disturbed of several
            forms[result["form"]] = result
    found = {}
    for name, forms in kept.items():
        shape, before, after = planted().get(name), forms.get("as it is"), forms.get("mended")
        if before is None or shape is None:
            continue
        if before["counted"] is None:
            found[name] = {"expected": "/".join(shape.causes), "found": "did not run", "cause": False}
            continue
        script = before["script"]
        receipt = judged(before)
        diagnosis = receipt["diagnosis"] or {"cause": "none", "advice": [], "evidence": [], "tags": [], "runner_up": ""}
        first = next(iter(diagnosis["advice"]), {"change": "", "gain": ""})
        change = re.sub(r"train\.py:(\d+)", lambda site, script=script: _line(script, int(site[1])), first["change"])
        gain = re.search(r"([\d.]+)×", first["gain"])
        predicted = float(gain[1]) if gain else None
        gained = (
            after["counted"]["examples_per_s"] / before["counted"]["examples_per_s"]
            if after and after["counted"]
            else None
        )
        most = math.inf if "or more" in first["gain"] else WITHIN
        within = predicted and gained and 1 / WITHIN <= gained / predicted <= most
        found[name] = {
            "expected": "/".join(shape.causes), "found": diagnosis["cause"], "cause": diagnosis["cause"] in shape.causes,
            "fix": any(word.lower() in change.lower() for word in shape.fixes), "change": change,
            "gain": first["gain"], "predicted": predicted, "gained": gained, "within": bool(within),
            "evidence": diagnosis["evidence"], "tags": diagnosis["tags"], "runner_up": diagnosis["runner_up"],
            "advice": diagnosis["advice"], "anatomy": receipt["anatomy"],
            "measured": receipt["measurements"]["gpus"],
        }  # fmt: skip
    return found


def _rate(result: Mapping[str, Any] | None) -> float:
    counted = result and result["counted"]
    return float(counted["examples_per_s"]) if counted else 0.0


def _line(script: str, number: int) -> str:
    """Return a script's line as a table names it: its text, inside its function."""
    around = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.FunctionDef)
              and node.lineno <= number <= (node.end_lineno or 0)]  # fmt: skip
    return f"[{''.join(f'{node.name}: ' for node in around)}{script.splitlines()[number - 1].strip()[:60]}]"


def rows(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each shape, and one with the three shares."""
    made = []
    for name, each in found.items():
        measured = ("cause", "fix", *(["within"] if each.get("predicted") and each.get("gained") else []))
        marks = [mark for mark in measured if not each.get(mark)]
        numbers = [f"{each[key]:.2f}×" if each.get(key) else "" for key in ("predicted", "gained")]
        made.append([name, each["expected"], each["found"], each.get("change", ""), *numbers,
                     f"not {', '.join(marks)}" if marks else "yes"])  # fmt: skip
    shares = []
    for key in ("cause", "fix", "within"):
        known = [each for each in found.values() if key != "within" or (each.get("predicted") and each.get("gained"))]
        right = sum(bool(each.get(key)) for each in known)
        shares.append(f"{right} of {len(known)}, {100 * right / max(1, len(known)):.0f} %")
    return [*made, ["all", "", shares[0], shares[1], "", shares[2], ""]]


def table(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table as text."""
    return [f"| {' | '.join(cell[:90] for cell in row)} |" for row in [COLUMNS, ["---"] * 7, *rows(found)]]


def write(path: Path, found: Mapping[str, Mapping[str, Any]], machine: str) -> None:
    """Write the table that the site shows."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, text=True).strip()
    kept = {
        "title": "Planted bottlenecks: the diagnosis, its first fix, and the gain when it is applied",
        "machine": machine, "versions": "torch 2.11.0+cu130, Python 3.12", "date": time.strftime("%Y-%m-%d"),
        "commit": commit, "files": ["src/seatrial/diagnosis", "src/seatrial/agent/hook", "tests/lab"],
        "command": "python tests/lab/bottlenecks.py OUT", "columns": COLUMNS, "rows": rows(found),
    }  # fmt: skip
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=2.4)
    parser.add_argument("--budget-s", type=float, default=390.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--rates", type=Path, help="mended scripts' lines of an earlier run, which are not run again")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--machine", default=f"{os.cpu_count()} shared cores, no GPU")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    if not options.judge:
        run(options)
    try:
        found = compare(options.out, *filter(None, [options.rates]))
    except ImportError as error:
        print(f"to be judged elsewhere, with --judge: {error}")
        return 0
    (options.out / "planted.json").write_text(json.dumps(found, indent=1))
    (options.out / "planted.md").write_text("\n".join(table(found)) + "\n")
    print("\n".join(table(found)))
    if options.write:
        write(options.write, found, options.machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
