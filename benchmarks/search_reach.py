"""How much of a grid's CPU time TPE with pruning needs to find the grid's best setting.

    seatrial sweep digits --on local --gpus none -e OMP_NUM_THREADS=1 --study grid --metric loss:min \\
        --set learning_rate=0.0001,0.0003,0.001,0.002,0.004,0.01,0.03 --set batch=16,32,64,128,256 -- --epochs 8
    python benchmarks/search_reach.py PROJECT grid

Every setting has been trained once, as a run, by the grid. The searches of ten seeds are replayed on what those runs
reported, with the CPU time that each had used by the report at which the pruner ended it: training is deterministic on
the CPU, so that a search would have seen the same numbers. It ends at the trial that has the grid's best value.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from seatrial import events
from seatrial.runs.store import RunStore
from seatrial.search.search import find_study
from seatrial.search.study import FILE, Study
from seatrial.search.trial import Ending, Trial
from seatrial.system.host import Host

SEEDS = 10


def main() -> None:
    project, name = Path(sys.argv[1]), sys.argv[2]
    store = RunStore(project, Host())
    study = find_study(store, name)
    objective, space = study.definition.parsed_objective(), study.definition.parsed_space()
    assert objective is not None, "the grid was run with --metric"
    grid = {tuple(trial.settings.items()): trial for trial in study.trials()}
    spent = {key: cpu_by_report(store, trial, objective.metric) for key, trial in grid.items()}
    all_s = sum(seconds[-1] for seconds in spent.values())
    sign = 1 if objective.lower_is_better else -1
    best = min(grid.values(), key=lambda trial: sign * (trial.value or 0.0))
    print(f"grid: {len(grid)} settings, {all_s:.0f} CPU-s; best {objective.metric} {best.value:.4f} at {best.label}")
    rows = []
    for search, prune in (("tpe", "asha"), ("tpe", "median"), ("tpe", "none"), ("random", "none")):
        shares = []
        for seed in range(SEEDS):
            folder = Path(tempfile.mkdtemp()) / "replay"
            folder.mkdir()
            definition = replace(study.definition, name="replay", search=search, prune=prune, trials=None, seed=seed)
            replay = Study.create(folder / FILE, definition)
            count, used_s, found = 0, 0.0, False
            while not found and (trial := replay.ask()) is not None:
                count += 1
                known = grid[tuple((one, trial.settings[one]) for one in space.names)]
                seconds = spent[tuple(known.settings.items())]
                for place, report in enumerate(known.reports):
                    if replay.report(trial.number, report.step, report.value) and place + 1 < len(known.reports):
                        used_s += seconds[place]
                        replay.tell(trial.number, Ending("pruned"))
                        break
                else:
                    used_s += seconds[-1]
                    replay.tell(trial.number, Ending("done", value=known.value))
                    found = known is best
            shares.append({"seed": seed, "found": found, "trials": count, "share": round(used_s / all_s, 3)})
        mean = statistics.fmean(one["share"] for one in shares)
        print(
            f"{search:6} prune {prune:6}: mean {mean:.1%} of the grid's CPU-s, found by "
            f"{sum(one['found'] for one in shares)} of {SEEDS}; "
            + " ".join(f"{one['share']:.0%}{'' if one['found'] else '(not found)'}" for one in shares)
        )
        rows.append({"search": search, "prune": prune, "mean": mean, "seeds": shares})
    if out := os.environ.get("OUT"):
        Path(out, "search_reach.json").write_text(json.dumps({"grid_cpu_s": all_s, "rows": rows}, indent=1))


def cpu_by_report(store: RunStore, trial: Trial, metric: str) -> list[float]:
    """CPU seconds that a trial had used by each of its reports; the last: by its end.

    The run's own CPU time, dealt out evenly over its wall time: it trains on one thread all the while.
    """
    told, _ = events.read(str(store.run(trial.run_id or "").events_path))
    started = next(events.of_type(told, events.TargetStarted))["t"]
    exited = next(events.of_type(told, events.TargetExited))["t"]
    steps = events.of_type(told, events.Step)
    times = [one["t"] for one in steps if f"test_{metric}" in one or (one.get("phase") == "test" and metric in one)]
    assert trial.ending is not None
    cpu_s = trial.ending.measured["cpu_s"]
    return [*(cpu_s * (t - started) / (exited - started) for t in times[:-1]), cpu_s]


if __name__ == "__main__":
    main()
