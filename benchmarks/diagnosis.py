"""Is the diagnosis right? Scripts bound on purpose (tests/lab/bound), run through seatrial, and what receipts show.

    python benchmarks/diagnosis.py OUT [--gpus 1|2|none] [--seconds 8] [--budget-s 540] [--lanes N] [--only NAME ...]
                                   [--first NAME ...] [--skip NAME ...] [--held-out] [--config seatrial.toml]
                                   [-- FLAGS FOR seatrial run]

    python benchmarks/diagnosis.py out -- --on local
    python benchmarks/diagnosis.py out --gpus 2 -- --on docker
    python benchmarks/diagnosis.py out --gpus none -- --on local
    python benchmarks/diagnosis.py out --again out/evidence.tar.gz [--pack tests/recorded/diagnosis/h200.jsonl.gz]

``--gpus none`` runs those that never come to a GPU and judges them as if one had been asked for and lay idle. With
``--lanes 2`` two run at a time, each on a GPU of its own. Writes OUT/diagnosis.json and OUT/diagnosis.md, a confusion
table, after every script, and OUT/evidence.tar.gz with each run's plan, events, receipt and the end of its output. A
script that crashes, takes longer than its time or finds none left is a line in both, not the end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BOUND = ROOT / "tests" / "lab" / "bound"
sys.path.insert(0, str(ROOT / "tests"))

#: A run beside its script: the agent, a kernel on each GPU, imports. Seen on an H200: 10 to 14 s.
STARTUP_S = 14.0
#: What compiles or prepares on purpose takes so much longer. Seen on an H200: 18 to 24 s until the first step.
PREPARING_S = 25.0
#: A script gets so many times its seconds, and this much beside them (compiling, preparing), then it is ended.
TIMES, BESIDE_S = 3, 45.0
#: Of each log that is kept.
_LOG_BYTES = 20_000

#: Causes that a machine without a GPU can show, if the script is judged as if it had been given one.
WITHOUT_GPU = frozenset({"cpu-only", "failed-early"})


def header(path: Path) -> dict[str, str]:
    """``# expect: data-bound; gpus: 2; flags: --cpus 0.5`` as a dict."""
    first = path.read_text().partition("\n")[0]
    if not first.startswith("# expect: "):
        raise ValueError(f"{path.name}: no '# expect:' in the first line")
    return dict(part.strip().split(": ", 1) for part in first[2:].split(";"))


class Report:
    """What has been found so far, on disk at every moment."""

    def __init__(self, out: Path, gpus: list[str]) -> None:
        self.out, self.lock = out, threading.Lock()
        self.found: dict[str, Any] = {"gpus": gpus, "scripts": {}}
        self.files: dict[str, bytes] = {}
        out.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, result: dict[str, Any], files: Mapping[str, bytes]) -> None:
        with self.lock:
            self.found["scripts"][name] = result
            self.files.update({f"{name}/{file}": data for file, data in files.items()})
            (self.out / "diagnosis.json").write_text(json.dumps(self.found, indent=1))
            (self.out / "diagnosis.md").write_text("\n".join(table(self.found)) + "\n")
            with tarfile.open(self.out / "evidence.tar.gz", "w:gz") as archive:
                for file, data in sorted(self.files.items()):
                    entry = tarfile.TarInfo(file)
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))


def table(found: Mapping[str, Any]) -> list[str]:
    """The confusion table, then a line for each script."""
    scripts = found["scripts"]
    judged = {name: result for name, result in scripts.items() if result.get("found")}
    right = sum(result["right"] for result in judged.values())
    causes = sorted({result[key] for result in judged.values() for key in ("expected", "found")})
    counts = Counter((result["expected"], result["found"]) for result in judged.values())
    lines = [
        f"GPUs: {', '.join(found['gpus']) or 'none'}. Right: {right} of {len(judged)}; {len(scripts) - len(judged)} not"
        " judged. Rows: bound by on purpose; columns: what the receipt said.",
        "",
        "| | " + " | ".join(causes) + " |",
        "| --- " * (len(causes) + 1) + "|",
    ]
    for row in causes:
        if any(counts[row, column] for column in causes):
            lines.append(f"| {row} | " + " | ".join(str(counts[row, column] or "") for column in causes) + " |")
    lines += ["", "| script | expected | found | tags | right | seen |", "| --- " * 6 + "|"]
    for name, result in sorted(scripts.items()):
        told = [result.get("found") or result.get("why", "?"), ", ".join(result.get("tags", []))]
        told.append({True: "yes", False: "**no**"}.get(result.get("right"), "not judged"))
        told.append("; ".join(result.get("evidence", [])))
        cells = [name, result["expected"], *told]
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return lines


def run_script(
    path: Path, options: argparse.Namespace, flags: list[str], limit_s: float
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Run one through ``seatrial run``; what its receipt says, and its evidence."""
    told = header(path)
    command = [sys.executable, "-m", "seatrial", "run", path.name, "--trust", "--json", *flags]
    command += ["--timeout", f"{limit_s:.0f}s", "--grace", "2s", *told.get("flags", "").split()]
    command += ["--launcher", told["launcher"]] if "launcher" in told else []
    with tempfile.TemporaryDirectory(prefix="bound-") as folder:
        (Path(folder) / path.name).write_text(path.read_text())
        if options.config is not None:
            (Path(folder) / "seatrial.toml").write_text(options.config.read_text())
        ended = _ended([*command, "--", str(options.seconds)], Path(folder), limit_s + 30)
        files = _evidence(Path(folder))
        try:
            receipt = json.loads(ended.stdout)
        except ValueError:
            return {"why": f"no receipt: {ended.stderr.strip()[-400:]}"}, files
        files["receipt.json"] = json.dumps(receipt).encode()
        if options.gpus == "none":
            from judged_again import as_if_on_a_gpu

            receipt = as_if_on_a_gpu(files, Path(folder))
    return judged(told, receipt), files


def judged(told: Mapping[str, str], receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Expected against found. ``says``: words that must stand in the evidence or the advice."""
    diagnosis = receipt.get("diagnosis")
    if diagnosis is None:
        return {"why": f"no diagnosis: {receipt['exit_cause']['words']}"}
    said = [*diagnosis["evidence"], *(advice["change"] for advice in diagnosis["advice"])]
    tags = [tag for tag in told.get("tags", "").split(", ") if tag]
    right = diagnosis["cause"] == told["expect"] and set(tags) <= set(diagnosis["tags"])
    return {
        "found": diagnosis["cause"],
        "tags": diagnosis["tags"],
        "evidence": diagnosis["evidence"],
        "advice": diagnosis["advice"],
        "right": right and told.get("says", "").lower() in " ".join(said).lower(),
        "measured": receipt["measurements"]["gpus"],
        "anatomy": [
            {**rank, "parts": {part["id"]: round(part["share"], 3) for part in rank["parts"]}}
            for rank in receipt.get("anatomy", [])
        ],
    }


def _ended(command: list[str], folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """The command, ended with all that it started when its time is over."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _evidence(folder: Path) -> dict[str, bytes]:
    """What the run has left, without what it saved."""
    run = next((folder / ".seatrial" / "runs").glob("*/"), None)
    kept: dict[str, bytes] = {}
    if run is None:
        return kept
    for name in ("events.jsonl", "stdout.log", "stderr.log"):
        if (run / name).exists():
            data = (run / name).read_bytes()
            kept[name] = data if name == "events.jsonl" else data[-_LOG_BYTES:]
    plan = (run / "events.jsonl").resolve().parent / "plan.json"
    if plan.exists():
        kept["plan.json"] = plan.read_bytes()
    return kept


def again(report: Report, options: argparse.Namespace) -> None:
    """Judge what these archives hold by the diagnosis of now; of a script in several the last counts."""
    from judged_again import judged_again, write_packed

    packed: dict[str, dict[str, bytes]] = {}
    for archive in options.again:
        runs: dict[str, dict[str, bytes]] = {}
        with tarfile.open(archive) as opened:
            for entry in opened:
                name, _, file = entry.name.partition("/")
                if (content := opened.extractfile(entry)) is not None:
                    runs.setdefault(name, {})[file] = content.read()
        for name, files in sorted(runs.items()):
            path = next(BOUND.rglob(f"{name}.py"), None)
            if path is None or name in options.skip or not {"plan.json", "events.jsonl"} <= set(files):
                continue
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / path.name).write_text(path.read_text())
                result = judged(header(path), judged_again(files, Path(folder)))
            report.add(name, {"expected": header(path)["expect"], **result}, files)
            packed[name] = files
            print(f"{name}: expected {header(path)['expect']}, found {result.get('found') or result.get('why')}")
    if options.pack is not None:
        write_packed(options.pack, packed)


def attempt(
    part: Callable[[], tuple[dict[str, Any], dict[str, bytes]]],
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The part's result, or why there is none."""
    try:
        return part()
    except Exception as error:  # noqa: BLE001  whatever it was, the other parts go on
        return {"why": repr(error)[:400]}, {}


def chosen(options: argparse.Namespace, flags: list[str]) -> tuple[list[Path], dict[str, str]]:
    """Scripts to run, and those left out with the reason."""
    folder = BOUND / "held_out" if options.held_out else BOUND
    local = "local" in flags
    run, left = [], {}
    named = {name: place for place, name in enumerate([*options.first, *options.only])}
    for path in sorted(folder.glob("*.py"), key=lambda path: (named.get(path.stem, len(named)), path.stem)):
        told = header(path)
        if (options.only and path.stem not in options.only) or path.stem in options.skip:
            continue
        if options.gpus == "none":
            if told["expect"] in WITHOUT_GPU and "needs" not in told:
                run.append(path)
        elif told.get("gpus", "1") == options.gpus:
            if local and told.get("needs") == "container":
                left[path.stem] = "not run: needs a container"
            else:
                run.append(path)
    return run, left


def lane(
    index: int, scripts: queue.Queue[Path], report: Report, options: argparse.Namespace, flags: list[str], end_s: float
) -> None:
    """Run scripts one after another, on a GPU of this lane's own where there are several lanes."""
    asked = options.gpus if options.lanes == 1 or options.gpus != "1" else f"device={index}"
    while True:
        try:
            path = scripts.get_nowait()
        except queue.Empty:
            return
        left_s, began_s = end_s - time.monotonic(), time.monotonic()
        files: dict[str, bytes] = {}
        slow = header(path)["expect"] in ("compiling", "start-up")
        if left_s < options.seconds + STARTUP_S + PREPARING_S * slow:
            result: dict[str, Any] = {"why": f"not run: {left_s:.0f} s left"}
        else:
            limit_s = min(left_s, TIMES * options.seconds + BESIDE_S)
            result, files = attempt(lambda path=path, limit_s=limit_s: run_script(
                path, options, ["--gpus", asked, *flags], limit_s))  # fmt: skip
            result["took_s"] = round(time.monotonic() - began_s, 1)
        result = {"expected": header(path)["expect"], **result}
        report.add(path.stem, result, files)
        print(f"{path.stem}: expected {result['expected']}, found {result.get('found') or result.get('why')}"
              f" ({result.get('took_s', 0)} s)", flush=True)  # fmt: skip


def main() -> int:
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", choices=("1", "2", "none"), default="1")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--budget-s", type=float, default=540.0)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--config", type=Path, help="a seatrial.toml for every run")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--first", nargs="*", default=[], help="run these before the others")
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--pack", type=Path, help="write what was judged again here, small and without names")
    parser.add_argument("--again", type=Path, nargs="*", default=[], help="judge these archives; run nothing")
    options = parser.parse_args(own)
    sources = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sources))
    end_s = time.monotonic() + options.budget_s
    report = Report(options.out, _gpu_names() if options.gpus != "none" and not options.again else [])
    if options.again:
        again(report, options)
        return _end(report)
    scripts, left = chosen(options, flags)
    for name, why in left.items():
        folder = BOUND / "held_out" if options.held_out else BOUND
        report.add(name, {"expected": header(folder / f"{name}.py")["expect"], "why": why}, {})
    waiting: queue.Queue[Path] = queue.Queue()
    for path in scripts:
        waiting.put(path)
    lanes = [
        threading.Thread(target=lane, args=(index, waiting, report, options, flags, end_s))
        for index in range(options.lanes)
    ]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    return _end(report)


def _end(report: Report) -> int:
    scripts = report.found["scripts"]
    wrong = sorted(name for name, result in scripts.items() if result.get("right") is False)
    left = sorted(name for name, result in scripts.items() if "right" not in result)
    right = len(scripts) - len(wrong) - len(left)
    print(f"right: {right}; wrong: {', '.join(wrong) or 'none'}; not judged: {', '.join(left) or 'none'}")
    return 1 if wrong or not right else 0


def _gpu_names() -> list[str]:
    from seatrial.probe import nvml

    return [gpu.name for gpu in nvml.inventory().gpus]


if __name__ == "__main__":
    sys.exit(main())
