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
from seatrial.receipt.model import ending as sentence
from seatrial.receipt.render import markdown, pages
from seatrial.receipt.reported import headline_metrics
from tables import constant

from .conftest import ALTERABLE, H200, SCENARIOS, START, Scenario, at, ending, prologue, run_of, running, stopped_by


def _gpu(utilization: float = 88.0, **changes: Any) -> Scenario:
    events = prologue((H200,)) + running(32, (H200,), utilization=utilization) + ending(36)
    return run_of((H200,), **{"events": events, **changes})


def _cpu(**changes: Any) -> Scenario:
    events = prologue(alterable=ALTERABLE) + running(32) + ending(36)
    return run_of(**{"events": events, "backend": "local", "model": None, "models_folder": False, **changes})


def _silent(until_s: float, gpus: tuple[Any, ...] = (), **changes: Any) -> Scenario:
    """Stopped at 113 s by the time limit; it printed until then, and once more as it ended."""
    stop = stopped_by("timeout", 113)
    events = prologue(gpus) + running(111, gpus) + [stop] + ending(114, None, "timeout", signal=15)
    index = "".join(f"{START + at_s} 1 6\n" for at_s in (4.5, until_s, 113.4))
    made = {"stdout": "step \n" * 3, "index": index, "state": State("exited", 124), "job": LIMIT, "agent": LIMIT}
    return run_of(gpus, events=events, **{**made, **changes})


def _clock_set() -> Scenario:
    """An hour is put on the clock just before the limit."""
    silent = _silent(100)
    later = [{**event, "t": event["t"] + 3600} for event in silent.events[-4:]]
    return replace(silent, events=silent.events[:-4] + later)


def _hang() -> Scenario:
    """The watchdog found it, and the user stopped it."""
    hung = at(20, "finding", id="hang", severity="error", message="No step for 5 min", evidence=[])
    events = prologue((H200,)) + running(10, (H200,)) + [hung, stopped_by("user", 30, "host")]
    return run_of((H200,), events=events + ending(31, None, "signal", signal=15), state=State("exited", 143))


def _untried() -> Scenario:
    events = [event for event in _gpu().events if event.get("kind") != "torch"]
    return _gpu(events=events, agent={"check": "torch"}, criteria={})


LIMIT = {"timeout_s": 110.0}
SERVER = {**LIMIT, "serve": Serving(kind="recipe", model="digits", name="digits", port=8000)}
HEADLINES = constant(__file__, "headlines")
CASES: dict[str, Any] = {
    "cpu": _cpu,
    "cpu-image": lambda: _cpu(backend="docker"),
    "cpu-fallback": SCENARIOS["cpu-fallback"],
    "contract": SCENARIOS["contract-failure"],
    "gpu": _gpu,
    "below-default": lambda: _gpu(12),
    "below-required": lambda: _gpu(12, criteria={"mean_utilization_pct": 70.0}),
    "utilization-off": lambda: _gpu(12, criteria={"mean_utilization_pct": None}),
    "below-default-strict": lambda: _gpu(12, job={"strict": True}),
    "tune": lambda: _gpu(12, job={"tuning": Tuning()}),
    "metric-missed": lambda: _gpu(criteria={"metrics": {"accuracy": ">= 0.9999"}}),
    "metric-met": lambda: _cpu(criteria={"metrics": {"accuracy": ">= 0.9"}}),
    "torch-untried": _untried,
    "gpu-not-used": SCENARIOS["gpu-not-used"],
    "script-error": SCENARIOS["script-error"],
    "killed": SCENARIOS["killed"],
    "silent": lambda: _silent(40),
    "silent-and-busy": lambda: _silent(40, (H200,)),
    "silent-throughout": lambda: _silent(0, stdout="", index=""),
    "server": lambda: _silent(40, job=SERVER),
    "index-unusable": lambda: _silent(40, index="nonsense\n"),
    "clock-set": _clock_set,
    "still-training": lambda: _silent(100),
    "hang": _hang,
}


@pytest.mark.parametrize("case", CASES)
def test_headline(case: str, tmp_path: Path) -> None:
    level, words = HEADLINES[case]
    receipt = CASES[case]().judge(tmp_path)
    assert (receipt.outcome.level, sentence(receipt)) == (level, words)
    assert receipt.model_dump(mode="json")["outcome"]["sentence"] == words.rpartition(" (seatrial")[0] or words
    mark, badge = {"good": ("✅", "pass"), "warning": ("⚠️", "warning"), "bad": ("❌", "fail")}[level]
    assert markdown.render(receipt).startswith(f"# {mark} ") and f'badge {badge}">' in pages.render(receipt)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["train-rmse", "eval-rmse"], ("eval-rmse", "")),
        (["train/loss", "val/loss"], ("val/loss", "")),
        (["train_acc1", "val_acc1", "lm_loss"], ("lm_loss", "val_acc1")),
        (["training's auc", "valid_0's auc"], ("", "valid_0's auc")),
    ],
)
def test_metric_of_data_not_trained_on_comes_first(names: list[str], shown: tuple[str, str]) -> None:
    assert headline_metrics(names) == shown


@pytest.mark.parametrize("made", [_gpu, _cpu])
def test_live_run_has_not_passed(made: Any, tmp_path: Path) -> None:
    run = made(state=State("running"))
    run.events = [event for event in run.events if event["type"] not in ("target.exited", "agent.finished")]
    receipt = run.judge(tmp_path)
    assert (receipt.outcome.id, receipt.outcome.level) == ("running", "none")
    assert (receipt.exit_cause.id, receipt.exit_code) == ("running", 0)


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
