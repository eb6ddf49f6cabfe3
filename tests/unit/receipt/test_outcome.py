"""The headline of each way to end, and which criteria count as requested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.base import State
from seatrial.job.model import Criteria
from seatrial.job.tables import Serving, Tuning
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import html, markdown
from seatrial.receipt.summary import ending as sentence

from .conftest import ALTERABLE, H200, SCENARIOS, START, Scenario, at, ending, prologue, running


def _gpu(utilization: float = 88.0, **changes: object) -> Scenario:
    events = prologue((H200,)) + running(32, (H200,), utilization=utilization) + ending(36)
    return replace(Scenario(events, (H200,), "required"), **changes)


def _cpu(**changes: object) -> Scenario:
    events = prologue(alterable=ALTERABLE) + running(32) + ending(36)
    return replace(Scenario(events, backend="local", model=None, models_folder=False), **changes)


def _silent(until_s: float, gpus: tuple[Any, ...] = (), **changes: object) -> Scenario:
    """Stopped at 113 s by the time limit; it printed until then, and once more as it ended."""
    stop = at(113, "signal", signal=15, name="SIGTERM", origin="timeout", forwarded_to=[7])
    events = prologue(gpus) + running(111, gpus) + [stop] + ending(114, None, "timeout", signal=15)
    index = "".join(f"{START + at_s} 1 6\n" for at_s in (4.5, until_s, 113.4))
    made = Scenario(events, gpus, "required" if gpus else "none", stdout="step \n" * 3, index=index)
    limit = {"timeout_s": 110.0}
    return replace(made, **{"state": State("exited", 124), "job": limit, "agent": limit, **changes})


def _clock_set() -> Scenario:
    """An hour is put on the clock just before the limit."""
    silent = _silent(100)
    later = [{**event, "t": event["t"] + 3600} for event in silent.events[-4:]]
    return replace(silent, events=silent.events[:-4] + later)


def _hang() -> Scenario:
    """The watchdog found it, and the user stopped it."""
    hung = at(20, "finding", id="hang", severity="error", message="No step for 5 min", evidence=[])
    stop = at(30, "signal", "host", signal=15, name="SIGTERM", origin="user", forwarded_to=[7])
    events = prologue((H200,)) + running(10, (H200,)) + [hung, stop] + ending(31, None, "signal", signal=15)
    return Scenario(events, (H200,), "required", state=State("exited", 143))


def _untried() -> Scenario:
    events = [event for event in _gpu().events if event.get("kind") != "torch"]
    return _gpu(events=events, agent={"check": "torch"}, criteria={})


SERVER = {"timeout_s": 110.0, "serve": Serving(kind="recipe", model="digits", name="digits", port=8000)}
LIMIT = "Failed. Stopped at the time limit of 1 min 50 s"
LOW = "GPU kept busy (GPU 0 12 %, required at least 70 %)"
STRICT = "seatrial exits with 0; 4 with --strict"

#: What happened → its level and its headline.
CASES = {
    "cpu": (_cpu, "good", "Done on the CPU. Finished in 33 s"),
    "cpu-image": (
        lambda: _cpu(backend="docker"), "good",
        "Done on the CPU. Finished in 33 s; met: Image small enough",
    ),
    "cpu-fallback": (
        SCENARIOS["cpu-fallback"], "good",
        "Finished in 33 s; met: Model saved. No GPU found; ran on the CPU. Use --gpus all to require one.",
    ),
    "contract": (
        SCENARIOS["contract-failure"], "bad",
        "Failed. The GPU contract was violated, so the target was not started: CUDA sees 0 of 1 GPU: /dev/nvidia-uvm "
        "is not in the container (seatrial exits with 3)",
    ),
    "gpu": (_gpu, "good", "Passed. Finished in 33 s; 6 criteria met"),
    "below-default": (
        lambda: _gpu(12), "good",
        "Passed, 1 warning. Finished in 33 s; 5 criteria met; default missed: GPU kept busy",
    ),
    "below-required": (
        lambda: _gpu(12, criteria={"mean_utilization_pct": 70.0}), "bad",
        f"Criteria not met. Finished in 33 s; not met: {LOW} ({STRICT})",
    ),
    "utilization-off": (
        lambda: _gpu(12, criteria={"mean_utilization_pct": None}), "good", "Passed. Finished in 33 s; 5 criteria met",
    ),
    "below-default-strict": (
        lambda: _gpu(12, job={"strict": True}), "bad",
        f"Criteria not met. Finished in 33 s; not met: {LOW} (seatrial exits with 4)",
    ),
    "tune": (lambda: _gpu(12, job={"tuning": Tuning()}), "good", "Passed. Finished in 33 s; 4 criteria met"),
    "metric-missed": (
        lambda: _gpu(criteria={"metrics": {"accuracy": ">= 0.9999"}}), "bad",
        f"Criteria not met. Finished in 33 s; not met: Metric accuracy (0.99109, required >= 0.9999) ({STRICT})",
    ),
    "metric-met": (
        lambda: _cpu(criteria={"metrics": {"accuracy": ">= 0.9"}}), "good",
        "Done on the CPU. Finished in 33 s; met: Metric accuracy",
    ),
    "torch-untried": (
        _untried, "warning", "Done, not proven. Finished in 33 s; not judged: Training ran on the GPU",
    ),
    "gpu-not-used": (
        SCENARIOS["gpu-not-used"], "bad",
        "Failed. The target finished, but never used 1 of 2 GPUs assigned to it (seatrial exits with 3)",
    ),
    "script-error": (
        SCENARIOS["script-error"], "bad",
        "Failed. The target exited with 1: ValueError: expected 10 classes, got <script>alert(1)</script> & "
        "[bold]11[/bold] (seatrial exits with 1)",
    ),
    "killed": (
        SCENARIOS["killed"], "bad",
        "Failed. The target was killed by SIGKILL (killed from outside: kill -9, or the host's OOM killer) "
        "(seatrial exits with 1)",
    ),
    "silent": (
        lambda: _silent(40), "bad",
        f"{LIMIT}; it had printed nothing for the last 1 min 13 s (seatrial exits with 1)",
    ),
    "silent-and-busy": (
        lambda: _silent(40, (H200,)), "bad",
        f"{LIMIT}; it had printed nothing for the last 1 min 13 s, and its GPU was 88 % busy (seatrial exits with 1)",
    ),
    "silent-throughout": (
        lambda: _silent(0, stdout="", index=""), "bad",
        f"{LIMIT}; it had printed nothing for the last 1 min 50 s (seatrial exits with 1)",
    ),
    "server": (lambda: _silent(40, job=SERVER), "bad", f"{LIMIT} (seatrial exits with 1)"),
    "index-unusable": (lambda: _silent(40, index="nonsense\n"), "bad", f"{LIMIT} (seatrial exits with 1)"),
    "clock-set": (_clock_set, "bad", f"{LIMIT} (seatrial exits with 1)"),
    "still-training": (lambda: _silent(100), "bad", f"{LIMIT} (seatrial exits with 1)"),
    "hang": (_hang, "warning", "Stopped by the user after 27 s (seatrial exits with 1)"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_headline(case: str, tmp_path: Path) -> None:
    scenario, level, words = CASES[case]
    receipt = scenario().judge(tmp_path)
    assert (receipt.outcome.level, sentence(receipt)) == (level, words)
    assert receipt.model_dump(mode="json")["outcome"]["sentence"] == words.rpartition(" (seatrial")[0] or words
    mark, badge = {"good": ("✅", "pass"), "warning": ("⚠️", "warning"), "bad": ("❌", "fail")}[level]
    assert markdown.render(receipt).startswith(f"# {mark} ")
    assert f'badge {badge}">' in html.render(receipt)


@pytest.mark.parametrize("made", [_gpu, _cpu])
def test_live_run_has_not_passed(made: Any, tmp_path: Path) -> None:
    run = made(state=State("running"))
    run.events = [event for event in run.events if event["type"] not in ("target.exited", "agent.finished")]
    receipt = run.judge(tmp_path)
    assert (receipt.outcome.id, receipt.outcome.level) == ("running", "none")


def test_required_criteria_survive_the_plan_and_a_verbs_own(tmp_path: Path) -> None:
    plan = _gpu(criteria={"mean_utilization_pct": 70.0, "metrics": {"accuracy": "> 0.5"}}).plan(tmp_path)
    again = type(plan).model_validate_json(plan.model_dump_json(), strict=False)
    assert again.job.criteria.model_fields_set == {"mean_utilization_pct", "metrics"} and again == plan
    assert Criteria().only("max_image_bytes").model_fields_set == set()
    taken = Criteria(max_image_bytes=3, model=("a",)).only("max_image_bytes", model=("b",))
    assert (taken.max_image_bytes, taken.model) == (3, ("b",))


def test_criterion_that_does_not_apply_was_not_required(tmp_path: Path) -> None:
    """The file's [criteria] hold for GPU runs and images, too; a run without them leaves nothing unproven."""
    receipt = _cpu(criteria={"mean_utilization_pct": 80.0, "max_image_bytes": 10}).judge(tmp_path)
    assert receipt.outcome.id == "cpu" and not any(criterion.asked for criterion in receipt.criteria)


@pytest.mark.parametrize(
    ("missing", "code", "id", "words"),
    [("sample", 0, "unproven", "GPU kept busy"), ("gpu.check", 3, "failed", "GPUs visible")],
)
def test_required_criterion_without_evidence_does_not_pass(
    tmp_path: Path, missing: str, code: int, id: str, words: str
) -> None:
    run = _gpu(criteria={"mean_utilization_pct": 50.0})
    run.events = [event for event in run.events if event["type"] != missing]
    receipt = run.judge(tmp_path)
    assert (receipt.exit_code, receipt.outcome.id) == (code, id) and words in receipt.outcome.words


def test_older_receipt_has_a_headline(tmp_path: Path) -> None:
    """It does not have what was required, so a missed criterion counts, as it did then."""

    def older(made: Scenario, name: str) -> Receipt:
        receipt = made.judge(tmp_path / name)
        content = receipt.model_dump(mode="json", exclude={"outcome": True, "criteria": {"__all__": {"asked"}}})
        return Receipt.model_validate(content)

    assert older(_gpu(12), "a").outcome.id == "unmet" and older(_gpu(), "b").outcome.id == "passed"
    assert older(_cpu(), "c").outcome.badge == "done on the CPU"


def test_kept_receipts_still_render() -> None:
    kept = sorted((Path(__file__).parents[3] / "docs/receipts").glob("*/receipt.json"))
    assert kept
    for path in kept:
        receipt = Receipt.model_validate_json(path.read_bytes())
        assert receipt.outcome.sentence and html.render(receipt) and markdown.render(receipt)
