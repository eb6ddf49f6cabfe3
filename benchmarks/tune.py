"""`seatrial tune` over a list of scripts: examples/s before and after, what was kept, how losses differ, what failed.

    python benchmarks/tune.py scripts.json OUT --budget 60 -- --on local --gpus 1

``scripts.json`` is a list of ``{"name": "mnist", "project": "mnist", "script": "main.py", "args": ["--epochs", "1"],
"flags": ["--gpus", "2"]}``; ``project`` counts from the list's folder, ``flags`` come behind those of the command line.
Writes ``tune.json`` and ``tune.md`` after each script, and at the end ``receipts.tar.gz``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

#: A script's tune may take so much longer than its budget: start, GPU check, receipt.
_BESIDE_S = 45.0

HEAD = ("script", "examples/s before", "after", "times", "kept", "losses differ", "two seeds", "trials, s", "told")


def main() -> int:
    """Run the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of trials for each script")
    parser.add_argument(
        "--total", type=float, default=1170.0, help="seconds for all; scripts that do not fit are left out"
    )
    parser.add_argument("--only", help="names of scripts, with commas")
    options, flags = parser.parse_known_args()
    flags = [flag for flag in flags if flag != "--"]
    options.out.mkdir(parents=True, exist_ok=True)
    began_s, rows = time.monotonic(), []
    wanted = options.only.split(",") if options.only else None
    for each in json.loads(options.list.read_text()):
        if wanted and each["name"] not in wanted:
            continue
        left_s = options.total - (time.monotonic() - began_s)
        if left_s < options.budget / 2 + _BESIDE_S:
            rows.append({"name": each["name"], "told": "not run: no time was left"})
        else:
            budget_s = min(options.budget, left_s - _BESIDE_S)
            rows.append(run(each, options.list.parent, options.out, budget_s, flags))
        (options.out / "tune.json").write_text(json.dumps(rows, indent=1))
        (options.out / "tune.md").write_text(table(rows))
        print(rows[-1]["name"], rows[-1].get("times"), rows[-1].get("kept"), rows[-1].get("told"), flush=True)
    with tarfile.open(options.out / "receipts.tar.gz", "w:gz") as packed:
        for path in sorted(options.out.glob("*.receipt.*")) + sorted(options.out.glob("*.log")):
            packed.add(path, path.name)
            path.unlink()
    print((options.out / "tune.md").read_text())
    return 0


def run(each: dict[str, Any], base: Path, out: Path, budget_s: float, flags: list[str]) -> dict[str, Any]:
    """One script: its row."""
    name, project = each["name"], (base / each.get("project", ".")).absolute()
    words = [sys.executable, "-m", "seatrial", "tune", each["script"], "-C", str(project), "--json", "--trust"]
    words += ["--budget", f"{budget_s:g}", *flags, *each.get("flags", []), "--", *each.get("args", [])]
    env = {**os.environ, **each.get("env", {})}
    began_s = time.monotonic()
    log = out / f"{name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True)
        try:
            answer, _ = process.communicate(timeout=budget_s + _BESIDE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                answer, _ = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                answer, _ = process.communicate()
    row: dict[str, Any] = {"name": name, "wall_s": round(time.monotonic() - began_s, 1), "exit": process.returncode}
    try:
        receipt = json.loads(answer)
    except ValueError:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return {**row, "told": f"no receipt: {last[0][:200] if last else 'nothing was printed'}"}
    (out / f"{name}.receipt.json").write_bytes(answer)
    return {**row, **of_receipt(receipt)}


def of_receipt(receipt: dict[str, Any]) -> dict[str, Any]:
    """What the table shows."""
    tune = receipt.get("tune") or {}
    base, whole = tune.get("baseline") or {}, tune.get("combination") or {}
    after = whole or base
    times = whole["steps_per_s"] / whole["against"] if whole.get("steps_per_s") and whole.get("against") else 1.0
    tried = [f"{row['words']}: {row['verdict']}" for row in tune.get("rows", [])]
    return {
        "before": base.get("examples_per_s"),
        "after": after.get("examples_per_s"),
        "steps_before": base.get("steps_per_s"),
        "steps_after": after.get("steps_per_s"),
        "spread": [base.get("spread"), after.get("spread")],
        "times": round(times, 3) if base else None,
        "between": " ({faster_low:.2f} to {faster_high:.2f})".format(**whole) if whole.get("faster_low") else "",
        "kept": tune.get("kept"),
        "loss_difference": whole.get("loss_difference"),
        "loss_band": tune.get("loss_band"),
        "trials": tune.get("trials"),
        "seconds": tune.get("seconds"),
        "tried": tried,
        "failures": [f"{row['words']}: {row['why']}" for row in tune.get("rows", []) if row["verdict"] == "failed"],
        "not_tried": tune.get("not_tried"),
        "told": tune.get("refusal") or (None if tune.get("done") else receipt["exit_cause"]["words"]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, with the median at its end."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for row in rows:
        kept = ", ".join(key if value is True else f"{key}={value}" for key, value in (row.get("kept") or {}).items())
        cells = (
            row["name"],
            _rate(row, "before"),
            _rate(row, "after"),
            "" if row.get("times") is None else f"{row['times']:.2f}{row.get('between', '')}",
            kept or "nothing",
            _figure(row.get("loss_difference")),
            _figure(row.get("loss_band")),
            f"{row.get('trials') or 0}, {row.get('seconds') or 0:.0f}",
            "; ".join(filter(None, [row.get("told"), *(row.get("failures") or [])])),
        )
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    times = [row["times"] for row in rows if row.get("times")]
    if times:
        slower = sum(value < 1 for value in times)
        lines.append("")
        lines.append(f"Median {statistics.median(times):.2f} × over {len(times)} scripts; {slower} slower.")
    return "\n".join(lines) + "\n"


def _rate(row: dict[str, Any], when: str) -> str:
    """Examples a second; steps where nobody knows of examples."""
    if row.get(when):
        return _figure(row[when])
    steps = row.get(f"steps_{when}")
    return f"{_figure(steps)} steps" if steps else ""


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
