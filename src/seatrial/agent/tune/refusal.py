"""Why a script cannot be tuned, in a sentence, from its first trial."""

from typing import NamedTuple, Optional

from seatrial.agent.tune.spec import Spec
from seatrial.agent.tune.trial import Trial


class Refusal(NamedTuple):
    """``id`` for programs; the sentence; what to do, where something can be done."""

    id: str
    words: str
    fix: Optional[str] = None


def refusal(trial: Trial, spec: Spec, limit_s: float) -> Optional[Refusal]:
    """None where the first trial was measured, so that others can be."""
    steps = int((trial.report or {}).get("all_steps") or 0)
    if trial.exit_code is None:
        what = "made no step" if not steps and not trial.anatomy else "did not get through a trial's steps"
        return Refusal("slow", "it %s within %.0f s" % (what, limit_s), "seatrial tune … --budget 600 --seconds 60")
    if trial.exit_code != 0 and not trial.measured:
        when = "before its first step" if not steps else "after %d steps" % steps
        return Refusal("crashed", "it failed %s: %s" % (when, last_line(trial.output)), "seatrial run …")
    if trial.hook_failed is not None and not trial.measured:
        return Refusal("hook", "the hook that measures it gave up: %s" % trial.hook_failed, None)
    if trial.report is None:
        return Refusal("no-torch", "it imported no torch, the one framework that tune knows, or left by os._exit")
    if not steps:
        return Refusal("no-step", "no optimizer made a step in it", None)
    if not trial.measured:
        if trial.ended == "seconds":
            return Refusal(
                "slow", "its steps are too slow: a trial saw %d" % trial.steps, "seatrial tune … --seconds 60"
            )
        return Refusal(
            "too-short",
            "it ended after %d steps, and a trial takes about %d" % (steps, 20 + spec.steps),
            "seatrial tune … -- --epochs 10   # or whatever makes it longer",
        )
    if spec.gpus and trial.facts.get("device") == "cpu":
        return Refusal("on-cpu", "it trains on the CPU and leaves the GPU alone", 'model.to("cuda")   # in the script')
    return None


def last_line(output: str) -> str:
    """What a failed trial said at its end: its exception, where it has one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and " " not in line.partition(":")[0]]
    return ((errors or lines or ["it printed nothing"])[-1])[:300]
