"""Judge whether training happened at all, before its bound: most failing runs never get so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from seatrial.common.signals import FEWEST_STEPS, Anatomy
from seatrial.diagnosis import AT, CAUSES, Advice, Cause, Diagnosis
from seatrial.diagnosis.advice import for_idle_gpus
from seatrial.diagnosis.signals import Signals
from seatrial.errors import SeatrialError, fallback
from seatrial.job.model import Target
from seatrial.job.reading.devices import Reason
from seatrial.job.script import script_facts

#: Shares of the whole run from which on it was mostly that, and from which on it is worth a tag. Of ours.
MOSTLY, NOTED = 0.5, 0.2
#: Less than this of steps is too short for samples of one second; with few steps, less than LONG_S: large models make
#: one in some seconds, and eight seconds of the GPU's counters are as good as many.
SHORTEST_S, LONG_S = 2.0, 8.0
#: A run that was stopped sooner than this, before it used its GPU, proves nothing: imports take 3 to 8 s there.
CUT_EARLY_S = 20.0
#: Seconds of steps that are judged unless the start took MANY_TIMES as long; shorter ones, unless FEW_TIMES. Measured
#: on an H200 (2026-11-22): imports of 3 to 8 s and 5 s of preparing before 5 to 7 s of steps are common.
STEADY_S, FEW_TIMES, MANY_TIMES = 4.0, 1.5, 3.0
#: Time for preparing data and models that is worth a remark, however little came after.
LONG_START_S = 5.0


class EndFacts(NamedTuple):
    """The end of a run, as far as a diagnosis needs it.

    Attributes:
        failed: in words; None if it finished, goes on, or was stopped by its user or at its time limit.
        cut: that it was stopped so, in words.
        wall_s: of the target. measured: the hook was there to see steps.
        gpus: requested. used: those with a CUDA context of the target; None if that is unknown.
        compile_s: of a script without optimizer steps. compiles_since_s: of one that was ended while it compiled.
        why_cpu: why the script may stay on the CPU, the strongest first.
    """

    failed: str | None = None
    cut: str | None = None
    wall_s: float | None = None
    measured: bool = False
    gpus: int = 1
    used: int | None = None
    compile_s: float = 0.0
    compiles_since_s: float | None = None
    why_cpu: tuple[Reason, ...] = ()


def happened(seen: Signals, ended: EndFacts) -> Diagnosis | None:
    """Return the diagnosis if something kept the script from training; None if nothing did, or if that is unknown."""
    first = seen.ranks[0] if seen.ranks else None
    short = first is not None and _short(first)
    if ended.failed is not None and (short or (first is None and _nothing_done(seen, ended))):
        steps = "No optimizer step was made" if first is None else f"It made {_steps(first)}"
        return _diagnosis("failed-early", f"{steps}: {ended.failed}")
    if ended.cut is not None and first is None and (cut := _cut(seen, ended, ended.cut)) is not None:
        return cut
    device = None if first is None else first.facts.get("device")
    if (ended.used == 0 and device in (None, "cpu")) or (device == "cpu" and _gpu_rests(seen)):
        return _on_the_cpu(first, ended)
    if ended.used is not None and 0 < ended.used < ended.gpus:
        unused = f"Of {ended.gpus} GPUs {ended.gpus - ended.used} never had a CUDA context of the script"
        return Diagnosis("imbalanced", (), (unused,), for_idle_gpus(ended.gpus, ended.used)[::-1])
    if first is None:
        if ended.compile_s < MOSTLY * (ended.wall_s or math.inf):
            return None
        return _diagnosis("compiling", f"torch.compile took {ended.compile_s:.1f} s of {ended.wall_s:.1f} s")
    return _start(first, ended.wall_s or 0.0) or (_diagnosis("too-short", _steps(first)) if short else None)


def _cut(seen: Signals, ended: EndFacts, words: str) -> Diagnosis | None:
    """Judge a run that was stopped before its first step; None if its work until then can be judged."""
    none = f"No optimizer step was made: {words}"
    wall_s, since_s = ended.wall_s or 0.0, ended.compiles_since_s
    if since_s is not None and wall_s - since_s >= MOSTLY * wall_s:
        return _diagnosis("compiling", f"torch.compile had begun after {since_s:.1f} s of {wall_s:.1f} s", none)
    if ended.used == 0:
        return _diagnosis("too-short", f"It never came to {_gpus(ended)}", none) if wall_s < CUT_EARLY_S else None
    works = seen.host.get("cpu_cores", 0.0) >= AT.WORKERS_ACTIVE_CORES
    return _diagnosis("start-up", none) if ended.measured and ended.used and _gpu_rests(seen) and works else None


def _start(first: Anatomy, wall_s: float) -> Diagnosis | None:
    """Judge a run that was mostly compilation or preparation before the first step."""
    if first.recompile_s > AT.WAIT_SHARE * first.seconds:
        return None  # if steps compile again and again
    compiled = notes(first, wall_s).get("compiling")
    start_s, import_s = (_seconds(first, key) for key in ("first_step_after_s", "imported_after_s"))
    prepared_s = start_s - import_s
    times = FEW_TIMES if first.seconds < STEADY_S else MANY_TIMES
    slow = prepared_s >= max(LONG_START_S, times * first.seconds)
    of_s = min(wall_s, start_s if _short(first) else wall_s, prepared_s if slow else wall_s)
    if compiled and first.compile_s >= MOSTLY * of_s:
        return _diagnosis("compiling", compiled, _steps(first))
    words = f"The first step ended {prepared_s:.1f} s after torch was imported; all steps took {first.seconds:.1f} s"
    return _diagnosis("start-up", words, _steps(first)) if slow else None


def notes(first: Anatomy, wall_s: float) -> dict[str, str]:
    """Return tag → sentence for what took much of the run besides its steps, and is not their bound."""
    found = {}
    start_s = _seconds(first, "first_step_after_s")
    if first.compile_s >= NOTED * wall_s > 0:
        found["compiling"] = f"torch.compile took {first.compile_s:.1f} s of {wall_s:.1f} s"
    if start_s >= MOSTLY * wall_s > 0:
        found["start-up"] = (
            f"The first step ended after {start_s:.1f} s of {wall_s:.1f} s: start-up was most of the run"
        )
    return found


def too_short(seen: Signals) -> Diagnosis:
    """Judge a script that used its GPU for a moment, without steps to count."""
    window = f" in {seen.window_s:.1f} s" if seen.window_s else ""
    words = f"{seen.samples} sample{'s' * (seen.samples != 1)} of the GPU{window}, and no optimizer steps"
    return _diagnosis("too-short", words)


def _seconds(first: Anatomy, key: str) -> float:
    value = first.facts.get(key)
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e9 else 0.0


def _short(first: Anatomy) -> bool:
    return first.seconds < SHORTEST_S or (first.steps < FEWEST_STEPS and first.seconds < LONG_S)


def _gpu_rests(seen: Signals) -> bool:
    return seen.gpu.get("utilization_pct", 0.0) < AT.IDLE_UTILIZATION_PCT


def _nothing_done(seen: Signals, ended: EndFacts) -> bool:
    """Return whether a failed script without steps computed nothing: its GPU would have been busy."""
    if ended.used == 0:
        return True
    rested = seen.gpu.get("utilization_pct", 0.0) < AT.BUSY_WHILE_OTHERS_IDLE_PCT or seen.samples < AT.MIN_SAMPLES
    return ended.measured and rested


def _on_the_cpu(first: Anatomy | None, ended: EndFacts) -> Diagnosis:
    lines = [] if ended.used != 0 else [f"No CUDA context of the script on {_gpus(ended)} in the whole run"]
    if first is not None:
        parameters = first.facts.get("parameters")
        held = f"{parameters:,} " if isinstance(parameters, int) else ""
        lines += [f"The optimizer's {held}parameters are on the CPU", _steps(first)]
    why = ended.why_cpu[:2]
    lines += [each.words[0].upper() + each.words[1:] if i else f"Why: {each.words}" for i, each in enumerate(why)]
    gain = "your GPU; a run on it measures how much faster it is"
    advice = tuple(Advice(reason.change, gain) for reason in why)
    return Diagnosis("cpu-only", (), tuple(lines), advice or (_MOVE,))


def _gpus(ended: EndFacts) -> str:
    return "the GPU" if ended.gpus == 1 else f"any of the {ended.gpus} GPUs"


def _diagnosis(cause: Cause, *evidence: str) -> Diagnosis:
    return Diagnosis(cause, (), evidence, tuple(Advice(*words) for words in CAUSES[cause].get("then", ())))


def _steps(first: Anatomy) -> str:
    rate = f", {first.steps_per_s:.3g} a second" if first.steps_per_s else ""
    return f"{first.steps} optimizer step{'s' * (first.steps != 1)} in {first.seconds:.1f} s{rate}"


_MOVE = Advice(
    'model.to("cuda") before the optimizer is made, and each batch.to("cuda")',
    "your GPU; a run on it measures how much faster it is",
)


@fallback((), on=(SeatrialError, OSError))
def reasons(target: Target, project: Path) -> tuple[Reason, ...]:
    """Return why a script may have stayed on the CPU, strongest first; () without a readable script."""
    return tuple(each for each in script_facts(target, project).devices if each.device != "visible:0")


def reason_by_torch(facts: Mapping[str, object]) -> Reason | None:
    """Return the reason that torch itself reported at the script's end, if the hook recorded it."""
    if "cuda_build" in facts and not facts["cuda_build"]:
        version = str(facts.get("version"))[:40]
        fix = "install torch from an index of CUDA builds, or let seatrial build the image: seatrial run --on docker"
        return Reason(-1, f"torch {version} is a CPU build: it cannot use any GPU", fix)
    return None
