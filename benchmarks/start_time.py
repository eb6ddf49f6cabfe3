"""Where the seconds go between `seatrial run mnist` and its model: a timeline out of the run's own evidence.

    python benchmarks/start_time.py OUT --data DIR [--runs 3] [--budget 60] [--config FILE] -- --on docker --gpus 1 …

Runs the recipe so often, then once more with Python's import times (which slow it down). Writes OUT/start_time.json and
.md after every run. A run that fails is a line of the table; the others go on.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

#: Printed by the recipe → what has happened by then.
SAID = {
    "data: ": "imports done, data read",
    "engine: ": "engine prepared",
    "saved ": "model saved",
}
#: Event, and its kind where it has one → the same.
HAPPENED = {
    ("host.launched", None): "container started",
    ("agent.started", None): "agent started",
    ("gpu.check", None): "CUDA sees the GPUs",
    ("gpu.kernel", "driver"): "driver's kernel ran",
    ("gpu.kernel", "torch"): "torch's kernel ran, beside the target",
    ("target.started", None): "target started",
    ("gpu.context", None): "CUDA context of the target seen",
    ("target.exited", None): "target ended, torch passed",
    ("host.state", None): "container ended",
}
#: A line of -X importtime: own microseconds, with what it imports, depth, name.
IMPORTED = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)")
#: Imports shown: those that take this long altogether.
SHOWN_S = 0.1


def main() -> None:
    """Measure and write."""
    arguments = parse()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    began, runs, imports = time.monotonic(), [], []
    for number in range(arguments.runs + 1):
        longest = max((run.get("command ended", 0.0) for run in runs), default=0.0)
        if runs and time.monotonic() - began + longest > arguments.budget:
            break
        profiled = number == arguments.runs
        flags = [*arguments.flags, *(["-e", "PYTHONPROFILEIMPORTTIME=1"] if profiled else [])]
        try:
            timeline, folder = run(out / "project", arguments, flags)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            timeline, folder = {"failed": str(error)[-800:]}, None
        if profiled:
            imports = slow_imports(folder / "stderr.log") if folder else []
        else:
            runs.append(timeline)
        write(out, arguments.flags, runs, imports)
    print((out / "start_time.md").read_text())


def parse() -> argparse.Namespace:
    """Our options; those of run behind --."""
    own, flags = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, flags = own[:place], own[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds after which no run is begun")
    parser.add_argument("--config", type=Path, help="a seatrial.toml for the runs")
    parser.add_argument("--recipe-options", default="", help="in one word, for the recipe")
    arguments = parser.parse_args(own)
    arguments.flags = flags
    return arguments


def run(project: Path, arguments: argparse.Namespace, flags: list[str]) -> tuple[dict[str, float], Path]:
    """One run: seconds since the command, by what had happened; and its folder."""
    project.mkdir(parents=True, exist_ok=True)
    if arguments.config:
        shutil.copy(arguments.config, project / "seatrial.toml")
    command = [sys.executable, "-m", "seatrial", "run", "mnist", "--trust", "-C", str(project)]
    command += ["--data", str(arguments.data.resolve()), *flags, "--", *arguments.recipe_options.split()]
    began = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.budget + 120)
    except subprocess.TimeoutExpired:  # the run goes on without the command, and would be in the next one's way
        stop = [sys.executable, "-m", "seatrial", "runs", "stop", "last", "-C", str(project)]
        subprocess.run(stop, capture_output=True, timeout=120)
        raise
    ended = time.time()
    folders = sorted((project / ".seatrial" / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime)
    if done.returncode != 0 or not folders:
        raise ValueError(f"exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    folder = (folders[-1] / "events.jsonl").resolve().parent  # the run's record, in the state folder
    moments = [*happened(folder), *said(folder), ("command ended", ended)]
    timeline: dict[str, float] = {}
    for name, at in sorted(moments, key=lambda moment: moment[1]):
        timeline.setdefault(name, round(at - began, 3))
    return timeline, folder


def happened(folder: Path) -> list[tuple[str, float]]:
    """Moments of events.jsonl, and the first and the last step by the recipe's own clock."""
    moments = []
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if name := HAPPENED.get((event["type"], event.get("kind"))):
            moments.append((name, event["t"]))
        if event["type"] == "step" and event.get("phase") == "end":
            moments += [("first step", event["t"] - event["loop_s"]), ("last step and its test", event["t"])]
    return moments


def said(folder: Path) -> list[tuple[str, float]]:
    """When the recipe printed what."""
    moments, offset = [], 0
    log = (folder / "stdout.log").resolve()  # in the state folder, where its index lies beside it
    output = log.read_bytes()
    for line in log.with_name("output.idx").read_text().splitlines():
        at, stream, count = line.split()
        if stream == "1":
            chunk, offset = output[offset : offset + int(count)].decode(), offset + int(count)
            moments += [(name, float(at)) for text, name in SAID.items() if chunk.startswith(text)]
    return moments


def slow_imports(log: Path) -> list[tuple[str, float, float]]:
    """(module, seconds altogether, its own) of those that are not within another slow one of the same package."""
    found = [(name, int(total) / 1e6, int(own) / 1e6) for own, total, _, name in IMPORTED.findall(log.read_text())]
    return sorted((each for each in found if each[1] >= SHOWN_S), key=lambda each: -each[1])[:25]


def write(out: Path, flags: list[str], runs: list[dict[str, float]], imports: list[tuple[str, float, float]]) -> None:
    """The JSON, and the table: medians, and every run beside them."""
    results = {"date": time.strftime("%Y-%m-%d %H:%M"), "flags": flags, "runs": runs, "imports": imports}
    (out / "start_time.json").write_text(json.dumps(results, indent=1))
    good = [each for each in runs if "failed" not in each]
    lines = [f"seatrial run mnist {' '.join(flags)}, {results['date']}; seconds since the command", ""]
    lines += [f"failed: {each['failed']}" for each in runs if "failed" in each]
    if good:
        names = sorted(good[0], key=lambda name: statistics.median(each.get(name, 0.0) for each in good))
        lines += ["| | median | since the line before | every run |", "|---|---|---|---|"]
        before = 0.0
        for name in names:
            values = [each[name] for each in good if name in each]
            middle = statistics.median(values)
            lines.append(f"| {name} | {middle:.2f} | {middle - before:.2f} | {', '.join(map(str, values))} |")
            before = middle
        spans = [each["model saved"] - each["container started"] for each in good if "model saved" in each]
        if spans:
            each = ", ".join(f"{span:.2f}" for span in spans)
            lines += ["", f"Container start to model saved: {statistics.median(spans):.2f} s ({each})."]
    if imports:
        lines += ["", "| import | s | its own |", "|---|---|---|"]
        lines += [f"| {name} | {total:.2f} | {own:.2f} |" for name, total, own in imports]
    (out / "start_time.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
