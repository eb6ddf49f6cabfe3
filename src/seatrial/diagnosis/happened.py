"""Did training happen at all? Asked before what bounds it: most runs that go wrong never come so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.diagnosis.anatomy import FEWEST_STEPS, Anatomy
from seatrial.diagnosis.diagnosis import Advice, Cause, Diagnosis

#: Shares of the whole run from which on it was mostly that, and nothing of the steps is worth a word.
MOSTLY = 0.5
#: Less than this of steps is too short for samples of one second.
SHORTEST_S = 2.0


@dataclass(frozen=True)
class Ended:
    """How the run ended, as far as a diagnosis needs it.

    Attributes:
        failed: in words; None where it finished, goes on, or was stopped by its user.
        wall_s: of the target. measured: the hook was there and the script uses torch.
    """

    failed: str | None = None
    wall_s: float | None = None
    measured: bool = False


def happened(ranks: Sequence[Anatomy], ended: Ended) -> Diagnosis | None:
    """What kept the script from training, or None where it did train, or nobody knows."""
    if not ranks:
        if ended.failed is not None and ended.measured:
            return _said("failed-early", f"No optimizer step was made: {ended.failed}")
        return None
    first = ranks[0]
    if first.facts.get("device") == "cpu":
        return _on_the_cpu(first)
    wall_s = ended.wall_s or 0.0
    if first.compile_s >= MOSTLY * wall_s > 0:
        return _said("compiling", f"torch.compile took {first.compile_s:.1f} s of {wall_s:.1f} s", _steps(first))
    start_s = first.facts.get("first_step_after_s")
    short = first.steps < FEWEST_STEPS or first.seconds < SHORTEST_S
    if isinstance(start_s, (int, float)) and start_s >= MOSTLY * wall_s > 0 and not short:
        before = f"The first step ended after {start_s:.1f} s, the run after {wall_s:.1f} s"
        return _said("start-up", before, _steps(first))
    if short:
        return _said("too-short", _steps(first))
    return None


def _on_the_cpu(first: Anatomy) -> Diagnosis:
    return Diagnosis(
        "cpu-only",
        (),
        (f"The optimizer's {first.facts.get('parameters', 0):,} parameters are on the CPU", _steps(first)),
        (Advice('model.to("cuda") before the optimizer is made, and each batch.to("cuda")', "the GPU that you have"),),
    )


def _said(cause: Cause, *evidence: str) -> Diagnosis:
    return Diagnosis(cause, (), evidence, _WHAT_THEN.get(cause, ()))


def _steps(first: Anatomy) -> str:
    rate = f", {first.steps_per_s:.3g} a second" if first.steps_per_s else ""
    return f"{first.steps} optimizer step{'s' * (first.steps != 1)} in {first.seconds:.1f} s{rate}"


_WHAT_THEN: dict[Cause, tuple[Advice, ...]] = {
    "compiling": (
        Advice("judge a longer run: compiling is done once", "nothing else can be said yet"),
        Advice("TORCHINDUCTOR_CACHE_DIR in a folder that is kept (--models)", "the next start compiles less"),
    ),
    "too-short": (Advice("run it longer, 30 s or more, to be told what bounds it", "nothing can be said yet"),),
    "start-up": (Advice("judge a longer run; what is done before the first step is done once", "up to 2×"),),
}
