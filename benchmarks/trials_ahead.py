"""Whether processes that were started ahead disturb a trial, and what they save: trials with and without, in turn.

    python benchmarks/trials_ahead.py OUT PROJECT [--seconds 150] [--workers 4] -- train.py ARGS

Each round is a trial alone, one beside which two processes are started, and one that was started ahead itself. Writes
OUT/ahead.json: steps a second of the measured part, and seconds of the whole trial, by kind; means with their standard
errors, and the ratio of rates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from seatrial.agent.hook import install as hook
from seatrial.agent.process.target import become_subreaper
from seatrial.agent.tune import trial
from seatrial.agent.tune.ahead import Ahead
from seatrial.agent.tune.spec import Spec

KINDS = ("alone", "beside", "ahead")


def main() -> int:
    """Run rounds until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("project", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--workers", type=int, help="loader workers, where the script is to have others")
    parser.add_argument("script", nargs="+")
    asked = parser.parse_args()
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    become_subreaper()
    changes = {"workers": asked.workers} if asked.workers is not None else {}
    with tempfile.TemporaryDirectory() as place:
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        hook.install(f"{place}/hooks", env, None, measure_steps=True)
        os.environ.update(env, SEATRIAL_EVENTS=f"{place}/events.jsonl")
        os.chdir(asked.project)
        spec = Spec(argv=[sys.executable, *asked.script], folder=f"{place}/tune", seconds=5.0)
        found = rounds(spec, changes, time.monotonic() + asked.seconds, out)
    print(json.dumps({name: value for name, value in found.items() if name != "trials"}, indent=1))
    return 0


def rounds(spec: Spec, changes: dict[str, Any], until_s: float, out: Path) -> dict[str, Any]:
    """The first trial, whose files come from the disk, is left out."""
    trials: list[tuple[str, float | None, float]] = []
    number = 0
    longest_s = 0.0
    none, two = Ahead(spec._replace(folder=f"{spec.folder}/none"), 0), Ahead(spec, 2)
    try:
        trial.run(spec, 0, changes, 0, 60.0, none)
        while time.monotonic() + 3 * longest_s < until_s:
            two.end()
            for kind in KINDS:
                number += 1
                made = trial.run(spec, number, changes, 0, 60.0, none if kind == "alone" else two)
                longest_s = max(longest_s, made.wall_s)
                trials.append((kind, made.steps_per_s, round(made.wall_s, 3)))
                (out / "ahead.json").write_text(json.dumps(summed(trials), indent=1))
    finally:
        two.end()
    return summed(trials)


def summed(trials: list[tuple[str, float | None, float]]) -> dict[str, Any]:
    """Means and standard errors by kind."""
    found: dict[str, Any] = {"trials": trials}
    for kind in KINDS:
        rates = [rate for one, rate, _ in trials if one == kind and rate]
        walls = [wall for one, _, wall in trials if one == kind]
        if rates:
            error = stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else None
            found[kind] = {"steps_per_s": fmean(rates), "error": error, "trials": len(rates), "wall_s": fmean(walls)}
    for kind in KINDS[1:]:
        if kind in found and "alone" in found:
            found[f"{kind} against alone"] = found[kind]["steps_per_s"] / found["alone"]["steps_per_s"]
    return found


if __name__ == "__main__":
    sys.exit(main())
