"""Run one trial: the script's whole command line with some changes, to its end, with its files put back."""

import filecmp
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from seatrial.agent import target
from seatrial.agent.tune import Spec
from seatrial.common.signals import STOPPED, why_stopped
from seatrial.events import read as read_events
from seatrial.probe import processes

#: New files that a trial deletes. Others, such as a data set that was loaded, stay and are reported.
_UNWANTED = re.compile(r"\.(pt|pth|pth\.tar|ckpt|safetensors)$|tfevents")
#: Trackers in trials keep to themselves: a dozen runs of seventy steps are of no use to anybody.
_QUIET = {"WANDB_MODE": "disabled", "COMET_AUTO_LOG_DISABLE": "1", "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1"}
#: Ranks, launchers and loaders of a trial that has reported get this long to leave.
_LEAVE_S = 5.0
#: Interval between checks whether the trial is over.
_LOOK_S = 0.02
#: Fewest measured steps that give a rate: of a script that ended before its trial, and of one with slow steps.
LEAST_STEPS, _LEAST_SLOW_STEPS = 10, 3
#: Largest share of the budget for a trial's steps; its start may take three times as long within the first limit.
_MEASURED = 0.15
#: Bytes of a script's output that are kept to explain a failed trial.
_MOST_OUTPUT_BYTES = 64 << 10
#: A helper of the script's that imports torch reports ``script`` at its own end.
_WHOLE = re.compile(rb'"ended":"(steps|seconds|refused)"')


def read(path: str) -> List[Dict[str, Any]]:
    """Return the objects in a file of JSON lines, without lines that were cut off; none without such a file."""
    with suppress(OSError):
        return read_events(path)[0]
    return []


def restore(events: str) -> Dict[str, Any]:
    """Restore files after a trial; return ``{"restored": number, "removed": number, "new": [paths left]}``."""
    restored, removed = 0, 0
    new: List[str] = []
    for line in reversed(read(events + ".journal")):
        with suppress(OSError, KeyError, TypeError):  # what cannot be put back lies in the trial's folder
            if "new" in line:
                path = line["new"]
                stands_in = "empty" in line and os.path.isfile(path) and not os.path.getsize(path)
                if os.path.isfile(path) and (stands_in or _UNWANTED.search(os.path.basename(path))):
                    os.remove(path)
                    removed += "empty" not in line
                elif os.path.isfile(path):
                    new.append(path)
            elif "copy" in line:
                if os.path.lexists(line["path"]) and filecmp.cmp(line["path"], line["copy"], shallow=False):
                    os.remove(line["copy"])
                else:
                    os.makedirs(os.path.dirname(line["path"]), exist_ok=True)
                    (shutil.copy2 if os.path.isfile(line["path"]) else shutil.move)(line["copy"], line["path"])
                    restored += 1
            elif os.path.getsize(line["path"]) > line["bytes"]:
                os.truncate(line["path"], line["bytes"])
                restored += 1
    shutil.rmtree(events + ".files", ignore_errors=True)
    return {"restored": restored, "removed": removed, "new": new[:20]}


class TuneTrial(NamedTuple):
    """Attributes:

    number: of the trial, from 1.
    report: rank 0's of the hook (hook/trial.py), or None. ranks: every rank's.
    applied, refused, places: what the hook could change (hook/changes.py); of all ranks together.
    anatomy: the last line of the recorder's, refined by its windows. facts: of the training.
    exit_code: None where it was ended for time. output: the end of what it printed.
    hook_failed: why the hook in it gave up. wall_s: from its start to its end.
    lines: the raw lines of rank 0's steps, to be passed on.
    """

    number: int
    report: Optional[Dict[str, Any]]
    ranks: List[Dict[str, Any]]
    applied: Dict[str, Any]
    refused: Dict[str, str]
    places: Dict[str, Any]
    anatomy: Dict[str, Any]
    facts: Dict[str, Any]
    exit_code: Optional[int]
    output: str
    wall_s: float
    lines: List[Dict[str, Any]]
    restored: Dict[str, Any]
    hook_failed: Optional[str] = None

    @property
    def steps_per_s(self) -> Optional[float]:
        return _number(self.report, "steps_per_s")

    @property
    def examples_per_s(self) -> Optional[float]:
        return _number(self.report, "examples_per_s")

    @property
    def steps(self) -> int:
        return int(_number(self.report, "steps") or 0)

    @property
    def peak_bytes(self) -> Optional[int]:
        return max((int(rank["peak_bytes"]) for rank in self.ranks if _number(rank, "peak_bytes")), default=None)

    @property
    def losses(self) -> List[Optional[float]]:
        values = (self.report or {}).get("losses")
        return [_finite(value) for value in values] if isinstance(values, list) else []

    @property
    def seed_offset(self) -> int:
        return int(_number(self.report, "seed_offset") or 0)

    @property
    def not_finite(self) -> bool:
        values = (self.report or {}).get("losses")
        return any(isinstance(value, float) and not math.isfinite(value) for value in values or [])

    @property
    def measured(self) -> bool:
        """Return whether it has a rate: a few slow steps are enough, as long as the trial came to its own end."""
        return self.steps >= (_LEAST_SLOW_STEPS if self.ended in ("steps", "seconds") else LEAST_STEPS)

    @property
    def ended(self) -> str:
        return str((self.report or {}).get("ended", ""))


def run(
    spec: Spec, number: int, changes: Dict[str, Any], seed_offset: int, limit_s: float, tried: Sequence[str] = ()
) -> TuneTrial:
    """Start it, wait, end what is left of it, put files back, read its reports. Of ``tried`` one key must apply."""
    seconds = min(spec.seconds, _MEASURED * spec.budget_s)  # slow steps are fewer, not a trial that is ended for time
    options: Dict[str, Any] = {"warmup_steps": 10, "steps": spec.steps, "seconds": seconds}
    options.update(seed_offset=seed_offset, tried=list(tried))
    began_s = time.monotonic()
    folder = os.path.join(spec.folder, "%02d" % number)
    events, printed = os.path.join(folder, "events.jsonl"), os.path.join(folder, "output.log")
    process = _start(spec, folder, options, changes)
    try:
        code = _wait(process, events, began_s + limit_s)
    finally:  # also where the run is being stopped
        _end(process)
        restored = restore(events)
    wall_s = time.monotonic() - began_s
    lines = read(events)
    ranks = _last_trials(lines)
    reported = next((line for line in ranks if not line.get("rank")), None)
    tuned = list({line.get("rank"): line["tuned"] for line in lines if isinstance(line.get("tuned"), dict)}.values())
    applied = _together(tuned, "applied")
    whose = (reported or {}).get("pid")
    of_rank = [
        line
        for line in lines
        if whose is None
        or any(isinstance(line.get(key), dict) and line[key].get("pid") == whose for key in ("anatomy", "training"))
    ]
    anatomies = [line["anatomy"] for line in of_rank if "anatomy" in line]
    facts = [line["training"] for line in of_rank if "training" in line]
    return TuneTrial(
        number=number,
        report=reported,
        ranks=ranks,
        applied=applied,
        refused={key: str(why) for key, why in _together(tuned, "refused").items() if key not in applied},
        places=_together(tuned, "places"),
        anatomy=anatomies[-1] if anatomies else {},
        facts=facts[-1] if facts else {},
        exit_code=code,
        output=_end_of(printed, _MOST_OUTPUT_BYTES).decode("utf-8", "replace"),
        wall_s=wall_s,
        lines=of_rank,
        restored=restored,
        hook_failed=why_stopped(lines, "trial_failed", STOPPED),
    )


def _start(spec: Spec, folder: str, options: Dict[str, Any], changes: Dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the script in a session of its own that dies with this process; its output goes to output.log."""
    os.makedirs(folder, exist_ok=True)
    env = dict(os.environ, **_QUIET)
    env.setdefault("MLFLOW_TRACKING_URI", "file:" + os.path.join(folder, "mlruns"))
    env["TENSORBOARD_LOGGING_DIR"] = os.path.join(folder, "tensorboard")
    env["SEATRIAL_EVENTS"] = os.path.join(folder, "events.jsonl")
    env["SEATRIAL_TRIAL"] = json.dumps(options)
    env.pop("SEATRIAL_TUNE", None)
    if changes:
        env["SEATRIAL_TUNE"] = json.dumps(changes)
    null, merged, dying = subprocess.DEVNULL, subprocess.STDOUT, target.dying_with_us()
    with open(os.path.join(folder, "output.log"), "wb") as output:
        return subprocess.Popen(
            spec.argv, env=env, stdin=null, stdout=output, stderr=merged, start_new_session=True, preexec_fn=dying
        )


def _wait(process: "subprocess.Popen[bytes]", events: str, until_s: float) -> Optional[int]:
    """Return its exit code; None if it took too long. A launcher that does not see its ranks' end is ended."""
    reported_s = None
    while True:
        code, now_s = process.poll(), time.monotonic()
        if code is not None or now_s >= until_s:
            return code
        # Rank 0's report of a whole trial is the last line, or the last but a few.
        lines = _end_of(events, 256 << 10).split(b"\n") if reported_s is None else []
        if any(b'"trial":{' in line and b'"rank":0,' in line and _WHOLE.search(line) for line in lines):
            reported_s = now_s
        if reported_s is not None and now_s - reported_s >= _LEAVE_S:
            return 0
        time.sleep(_LOOK_S)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End everything that the trial left: all processes below this one, which inherits orphans."""
    until_s = time.monotonic() + _LEAVE_S
    while time.monotonic() < until_s:
        pids = [each.pid for each in processes.descendants(os.getpid())]
        target.send_signal(pids, signal.SIGKILL)
        process.poll()
        with suppress(OSError):  # no child is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not pids:
            return
        time.sleep(0.02)


def _last_trials(lines: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return each rank's report with the most steps: helpers that import torch end without any."""
    best: Dict[int, Dict[str, Any]] = {}
    trials = [line["trial"] for line in lines if isinstance(line.get("trial"), dict)]
    for trial in sorted(trials, key=lambda each: each.get("all_steps") or 0, reverse=True):
        best.setdefault(int(trial.get("rank") or 0), trial)
    return [best[rank] for rank in sorted(best)]


def _together(reported: List[Dict[str, Any]], key: str) -> Dict[str, Any]:
    maps = (line[key] for line in reported if isinstance(line.get(key), dict))
    return {name: value for each in maps for name, value in each.items()}


def _end_of(path: str, most_bytes: int) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - most_bytes))
        return file.read()
    return b""


def _number(values: Optional[Dict[str, Any]], key: str) -> Optional[float]:
    return _finite((values or {}).get(key))


def _finite(value: Any) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
