"""The headline: what each way to end is called, aloud; and who asked for what."""

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


def _silent(until_s: float, gpus: tuple[Any, ...] = ()) -> Scenario:
    """Stopped at 113 s by the time limit; it printed until then, and once more as it ended."""
    stop = at(113, "signal", signal=15, name="SIGTERM", origin="timeout", forwarded_to=[7])
    events = prologue(gpus) + running(111, gpus) + [stop] + ending(114, None, "timeout", signal=15)
    index = "".join(f"{START + at_s} 1 6\n" for at_s in (4.5, until_s, 113.4))
    mode = "required" if gpus else "none"
    limits = {"job": {"timeout_s": 110.0}, "agent": {"timeout_s": 110.0}}
    return Scenario(events, gpus, mode, stdout="step \n" * 3, index=index, state=State("exited", 124), **limits)


def _silent_from_the_start() -> Scenario:
    return replace(_silent(0), stdout="", index="")


def _silent_by_a_set_clock() -> Scenario:
    """An hour is put on the clock just before the limit."""
    silent = _silent(100)
    later = [{**event, "t": event["t"] + 3600} for event in silent.events[-4:]]
    return replace(silent, events=silent.events[:-4] + later)


def _silent_server() -> Scenario:
    silent = _silent(40)
    serving = Serving(kind="recipe", model="digits", name="digits", port=8000)
    return replace(silent, job={**silent.job, "serve": serving})


def _hang() -> Scenario:
    """The watchdog found it, and the user stopped it."""
    hung = at(20, "finding", id="hang", severity="error", message="No step for 5 min", evidence=[])
    stop = at(30, "signal", "host", signal=15, name="SIGTERM", origin="user", forwarded_to=[7])
    events = prologue((H200,)) + running(10, (H200,)) + [hung, stop] + ending(31, None, "signal", signal=15)
    return Scenario(events, (H200,), "required", state=State("exited", 143))


#: What happened → its level and its headline, read aloud.
CASES = {
    "a CPU run, as asked": (
        _cpu,
        "good",
        "Done on the CPU. Finished in 33 s; GPU criteria do not apply: no GPU was requested (seatrial exits with 0)",
    ),
    "a CPU run in an image, whose size was judged": (
        lambda: _cpu(backend="docker"),
        "good",
        "Done on the CPU. Finished in 33 s; met: Image small enough; GPU criteria do not apply: no GPU was requested "
        "(seatrial exits with 0)",
    ),
    "auto found no GPU": (
        SCENARIOS["cpu-fallback"],
        "warning",
        "Done on the CPU, no GPU was found. Finished in 33 s; met: Model saved; GPU criteria do not apply: "
        "it ran without one (seatrial exits with 0)",
    ),
    "GPUs asked for, and none there": (
        SCENARIOS["contract-failure"],
        "bad",
        "Failed. The GPU contract was violated, so the target was not started: CUDA sees 0 of 1 GPU: /dev/nvidia-uvm "
        "is not in the container (seatrial exits with 3)",
    ),
    "a GPU run": (_gpu, "good", "Passed. Finished in 33 s; 6 criteria met (seatrial exits with 0)"),
    "a GPU run below the default utilisation": (
        lambda: _gpu(utilization=12),
        "good",
        "Passed, 1 warning. Finished in 33 s; 5 criteria met; default missed: GPU kept busy (seatrial exits with 0)",
    ),
    "a GPU run below the utilisation that was asked for": (
        lambda: _gpu(utilization=12, criteria={"mean_utilization_pct": 70.0}),
        "bad",
        "Criteria not met. Finished in 33 s; not met: GPU kept busy (GPU 0 12 %, required at least 70 %) "
        "(seatrial exits with 0; 4 with --strict)",
    ),
    "a GPU run whose utilisation is not to be judged": (
        lambda: _gpu(utilization=12, criteria={"mean_utilization_pct": None}),
        "good",
        "Passed. Finished in 33 s; 5 criteria met (seatrial exits with 0)",
    ),
    "the same default under --strict": (
        lambda: _gpu(utilization=12, job={"strict": True}),
        "bad",
        "Criteria not met. Finished in 33 s; not met: GPU kept busy (GPU 0 12 %, required at least 70 %) "
        "(seatrial exits with 4)",
    ),
    "trials of a tune, which train nothing": (
        lambda: _gpu(utilization=12, job={"tuning": Tuning()}),
        "good",
        "Passed. Finished in 33 s; 4 criteria met (seatrial exits with 0)",
    ),
    "a recipe's accuracy, missed": (
        lambda: _gpu(criteria={"metrics": {"accuracy": ">= 0.9999"}}),
        "bad",
        "Criteria not met. Finished in 33 s; not met: Metric accuracy (0.99109, required >= 0.9999) "
        "(seatrial exits with 0; 4 with --strict)",
    ),
    "a recipe's accuracy, met on the CPU": (
        lambda: _cpu(criteria={"metrics": {"accuracy": ">= 0.9"}}),
        "good",
        "Done on the CPU. Finished in 33 s; met: Metric accuracy; GPU criteria do not apply: no GPU was requested "
        "(seatrial exits with 0)",
    ),
    "a GPU that torch was never tried on": (
        lambda: _gpu(
            events=[e for e in _gpu().events if e.get("kind") != "torch"], agent={"check": "torch"}, criteria={}
        ),
        "warning",
        "Done, not proven. Finished in 33 s; not judged: Training ran on the GPU (seatrial exits with 0)",
    ),
    "a GPU that was not used": (
        SCENARIOS["gpu-not-used"],
        "bad",
        "Failed. The target finished, but never used 1 of 2 GPUs assigned to it (seatrial exits with 3)",
    ),
    "a script that failed": (
        SCENARIOS["script-error"],
        "bad",
        "Failed. The target exited with 1: ValueError: expected 10 classes, got <script>alert(1)</script> & "
        "[bold]11[/bold] (seatrial exits with 1)",
    ),
    "killed": (
        SCENARIOS["killed"],
        "bad",
        "Failed. The target was killed by SIGKILL (killed from outside: kill -9, or the host's OOM killer) "
        "(seatrial exits with 1)",
    ),
    "the time limit": (
        SCENARIOS["timeout"],
        "bad",
        "Failed. Stopped at the time limit of 10 s (seatrial exits with 1)",
    ),
    "the time limit of one that says nothing": (
        lambda: _silent(40),
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s; it had printed nothing for the last 1 min 13 s "
        "(seatrial exits with 1)",
    ),
    "the time limit of one that says nothing while its GPU is busy": (
        lambda: _silent(40, (H200,)),
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s; it had printed nothing for the last 1 min 13 s, and its GPU "
        "was 88 % busy (seatrial exits with 1)",
    ),
    "the time limit of one that never said anything": (
        _silent_from_the_start,
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s; it had printed nothing for the last 1 min 50 s "
        "(seatrial exits with 1)",
    ),
    "the time limit of a server": (
        _silent_server,
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s (seatrial exits with 1)",
    ),
    "the time limit of one that no index tells of": (
        lambda: replace(_silent(40), index="nonsense\n"),
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s (seatrial exits with 1)",
    ),
    "the time limit behind a clock that was set": (
        _silent_by_a_set_clock,
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s (seatrial exits with 1)",
    ),
    "the time limit of one that still trains": (
        lambda: _silent(100),
        "bad",
        "Failed. Stopped at the time limit of 1 min 50 s (seatrial exits with 1)",
    ),
    "a hang, stopped by hand": (_hang, "warning", "Stopped by the user after 27 s (seatrial exits with 1)"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_headline_aloud(case: str, tmp_path: Path) -> None:
    scenario, level, words = CASES[case]
    receipt = scenario().judge(tmp_path)
    assert (receipt.outcome.level, sentence(receipt)) == (level, words)
    mark, badge = {"good": ("✅", "pass"), "warning": ("⚠️", "warning"), "bad": ("❌", "fail")}[level]
    assert markdown.render(receipt).startswith(f"# {mark} ")
    assert f'badge {badge}">' in html.render(receipt)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_run_that_goes_on_has_not_passed(gpu: bool, tmp_path: Path) -> None:
    run = (_gpu if gpu else _cpu)(state=State("running"))
    run.events = [event for event in run.events if event["type"] not in ("target.exited", "agent.finished")]
    receipt = run.judge(tmp_path)
    assert (receipt.outcome.id, receipt.outcome.level) == ("running", "none")


def test_what_is_asked_for_survives_the_plan(tmp_path: Path) -> None:
    plan = _gpu(criteria={"mean_utilization_pct": 70.0, "metrics": {"accuracy": "> 0.5"}}).plan(tmp_path)
    again = type(plan).model_validate_json(plan.model_dump_json(), strict=False)
    assert again.job.criteria.model_fields_set == {"mean_utilization_pct", "metrics"}
    assert again == plan and again.job.criteria.max_image_bytes == Criteria().max_image_bytes


def test_what_a_verb_takes_over_is_still_not_asked_for() -> None:
    assert Criteria().only("max_image_bytes").model_fields_set == set()
    taken = Criteria(max_image_bytes=3, model=("a",)).only("max_image_bytes", model=("b",))
    assert (taken.max_image_bytes, taken.model) == (3, ("b",))


def test_a_criterion_that_could_not_arise_was_not_asked_for(tmp_path: Path) -> None:
    """The file's [criteria] hold for GPU runs and images, too; a run without them leaves nothing unproven."""
    receipt = _cpu(criteria={"mean_utilization_pct": 80.0, "max_image_bytes": 10}).judge(tmp_path)
    assert receipt.outcome.id == "cpu" and not any(criterion.asked for criterion in receipt.criteria)


def test_an_asked_for_utilisation_without_samples_is_not_passed(tmp_path: Path) -> None:
    run = _gpu(criteria={"mean_utilization_pct": 50.0})
    run.events = [event for event in run.events if event["type"] != "sample"]
    receipt = run.judge(tmp_path)
    assert receipt.outcome.id == "unproven" and "GPU kept busy" in receipt.outcome.words


def test_a_broken_contract_fails_a_target_that_finished(tmp_path: Path) -> None:
    """A pod whose check never reported, say: the criterion alone knows."""
    run = _gpu()
    run.events = [event for event in run.events if event["type"] != "gpu.check"]
    receipt = run.judge(tmp_path)
    assert receipt.exit_code == 3 and receipt.outcome.id == "failed" and "GPUs visible" in receipt.outcome.words


def test_a_receipt_of_before_has_a_headline(tmp_path: Path) -> None:
    """It does not say what was asked for, so a missed criterion counts, as it did then."""
    low, fine = (_gpu(utilization=u).judge(folder) for u, folder in ((12, tmp_path / "a"), (88, tmp_path / "b")))

    def of_before(receipt: Receipt) -> Receipt:
        content = receipt.model_dump(mode="json", exclude={"outcome": True, "criteria": {"__all__": {"asked"}}})
        return Receipt.model_validate(content)

    assert of_before(low).outcome.id == "unmet" and of_before(fine).outcome.id == "passed"
    assert of_before(_cpu().judge(tmp_path / "c")).outcome.badge == "done on the CPU"


def test_the_headline_stands_in_the_json(tmp_path: Path) -> None:
    told = _gpu().judge(tmp_path).model_dump(mode="json")["outcome"]
    assert told["id"] == "passed" and told["sentence"] == "Passed. Finished in 33 s; 6 criteria met"


def test_receipts_that_were_kept_still_show() -> None:
    kept = sorted((Path(__file__).parents[3] / "docs/receipts").glob("*/receipt.json"))
    assert kept
    for path in kept:
        receipt = Receipt.model_validate_json(path.read_bytes())
        assert receipt.outcome.sentence and html.render(receipt) and markdown.render(receipt)
