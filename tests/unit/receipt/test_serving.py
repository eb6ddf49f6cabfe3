"""The receipt of a server: its own count, and the agent's measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from seatrial.job.model import Target
from seatrial.job.tables import Serving, Weights
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import markdown, pages, terminal
from seatrial.receipt.render.svg import MAX_BARS, draw_bars
from seatrial.receipt.section import Bars
from seatrial.receipt.sections.serving import MAX_SIZES, MAX_STATUSES

from .conftest import EXITED, H200, Scenario, at

SERVING = Serving(
    kind="recipe",
    model="digits",
    name="digits",
    port=8001,
    weights=(Weights(path="digits.safetensors", sha256="ab" * 32, bytes=901_000),),
    of_run="20261120-110000-made",
    typed="digits --port 8001",
)
REPORT: dict[str, Any] = {
    "requests": 2000,
    "errors": {"429": 3},
    "p50_ms": 2.5,
    "p95_ms": 4.0,
    "p99_ms": 9.0,
    "batches": {"1": 10, "8": 90, "32": 40},
    "queue_peak": 40,
    "seconds": 20.0,
    "examples": 16,
    "largest_difference": 2e-6,
}


class Server(Scenario):
    """A scenario whose target is the server."""

    def plan(self, project: Path) -> Any:
        plan = super().plan(project)
        job = plan.job.model_copy(update={"target": Target(kind="recipe", value="serve"), "serve": SERVING})
        return plan.model_copy(update={"job": job})


def sample(at_s: float, power_w: float) -> dict[str, Any]:
    gpu = {"uuid": H200.uuid, "power_w": power_w, "utilization_pct": 20.0, "throttle_reasons": []}
    return at(at_s, "sample", gpus=[gpu], cpu_cores=0.5, processes=2)


def events(*reports: dict[str, Any], signal: int | None = None) -> list[dict[str, Any]]:
    exited = {"exit_code": None if signal else 0, "signal": signal, "cause": "signal" if signal else "exited"}
    lines = [
        at(0, "agent.started", pid=1, python="3.11.7", cgroup={}, alterable=None),
        at(0.5, "gpu.check", expected=[H200.uuid], visible=[{"uuid": H200.uuid}], ok=True),
        at(0.8, "gpu.kernel", uuid=H200.uuid, kind="torch", ok=True, ms=1.0),
        at(1, "target.started", pid=7, launcher="none"),
        at(3, "gpu.context", uuid=H200.uuid, pid=7, evidence="nvml-process"),
        *(sample(float(second), 400.0 if second >= 9 else 100.0) for second in range(1, 30)),
        *(at(29, "served", "target", **report) for report in reports),
        *([] if signal else [at(29, "signal", "host", signal=15, name="SIGTERM", origin="user")]),
        at(30, "target.exited", seconds=29, oom_kills=0, **exited),
        at(30, "agent.finished", exit_code=0, energy_j={H200.uuid: 9000.0}, contexts=[H200.uuid]),
    ]
    return sorted(lines, key=lambda event: float(event["t"]))


def judged(folder: Path, *reports: dict[str, Any], signal: int | None = None) -> Receipt:
    return Server(events(*reports, signal=signal), gpus=(H200,), gpu_mode="required", model=None).judge(folder)


def test_server_is_judged_without_training_criteria_and_by_its_own_energy(tmp_path: Path) -> None:
    """20 s at 400 W: not the 9,000 J of the whole run, of which the first seconds are loading."""
    receipt = judged(tmp_path, REPORT)
    verdicts = {criterion.id: (criterion.verdict, criterion.evidence) for criterion in receipt.criteria}
    assert all(verdicts[id] == ("not judged", "it serves") for id in ("gpu-busy", "in-time", "model-saved"))
    assert verdicts["ran-on-gpu"][0] == "pass"
    assert (receipt.exit_code, receipt.exit_cause.id, receipt.outcome.id) == (0, "stopped", "passed")
    assert receipt.diagnosis is None and not receipt.doubtful
    serving, measured = receipt.serving, receipt.measurements
    assert serving is not None and serving.energy_j == pytest.approx(8000, rel=0.01)
    assert serving.joules_per_1000 == pytest.approx(4000, rel=0.01)
    assert (measured.window_start_s, measured.window_s) == (9.0, 20.0)


def test_claimed_time_before_the_start_has_no_energy(tmp_path: Path) -> None:
    serving = judged(tmp_path, {**REPORT, "seconds": 1e6}).serving
    assert serving is not None and serving.energy_j is not None and serving.energy_j < 9000


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=15, deadline=None)
@given(odd=st.dictionaries(st.sampled_from(sorted(REPORT)), ODD))
def test_impossible_values_of_a_report_are_left_out(tmp_path_factory: Any, odd: dict[str, Any]) -> None:
    serving = judged(tmp_path_factory.mktemp("odd"), {**REPORT, **odd}).serving
    assert serving is not None
    json.loads(serving.model_dump_json(), parse_constant=pytest.fail)
    assert serving.requests >= 0 and serving.seconds >= 0 and all(each.rows > 0 for each in serving.batches)


def test_last_complete_report_counts_and_tables_are_cut(tmp_path: Path) -> None:
    flood = {
        **REPORT,
        "p50_ms": 10.0,
        "errors": {str(status): 1 for status in range(600)} | {"<script>": 5},
        "batches": {str(size): size for size in range(5000)} | {"-1": 3, "1e3": 9, "": 1},
    }
    serving = judged(tmp_path, REPORT, flood, {"requests": 5}, {"seconds": 1}, {}).serving
    assert serving is not None and (serving.p50_ms, serving.p99_ms) == (None, None)
    assert len(serving.errors) == MAX_STATUSES and len(serving.batches) == MAX_SIZES
    assert serving.batches[0].rows == 5000 - MAX_SIZES and all(key.isdigit() for key in serving.errors)


def test_every_rendering_shows_the_count_and_escapes_names(tmp_path: Path) -> None:
    receipt = judged(tmp_path, REPORT)
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    terminal.render(receipt, console)
    page, text = pages.render(receipt), markdown.render(receipt)
    for shown in (console.export_text(), text, page):
        for words in (
            "digits.safetensors",
            "ab" * 6,
            "2,000 in 20",
            "3 × 429",
            "p99 9 ms",
            "16 saved inputs",
            "itself",
        ):
            assert words in " ".join(shown.split()), words
    assert "<rect" in page and "| 32 | 40 |" in text
    assert Receipt.model_validate_json(receipt.model_dump_json()) == receipt
    assert receipt.serving is not None and receipt.serving.batches[2].batches == 40
    evil = receipt.serving.model_copy(update={"model": "<script>alert(1)</script>"})
    assert "<script>alert" not in pages.render(receipt.model_copy(update={"serving": evil}))


def test_server_that_died_or_was_never_ready(tmp_path: Path) -> None:
    receipt = judged(tmp_path / "died", REPORT, signal=9)
    assert receipt.exit_code == 1 and receipt.exit_cause.id == "signal"
    assert any("seatrial serve digits --port 8001" in warning for warning in receipt.warnings)
    receipt = judged(tmp_path / "silent")
    assert receipt.serving is not None and not receipt.serving.reported
    assert "no request count" in markdown.render(receipt)


def test_report_of_a_training_is_no_servers_count(tmp_path: Path) -> None:
    plain = Scenario(events(REPORT), gpus=(H200,), gpu_mode="required", state=EXITED).judge(tmp_path)
    assert plain.serving is None and plain.header.target.startswith("train.py")


@pytest.mark.parametrize("sizes", [1, MAX_BARS, MAX_BARS + 1, 64])
def test_bars_fit(sizes: int) -> None:
    drawn = draw_bars(Bars("Rows", "Batches", [(size, size * size) for size in range(1, sizes + 1)]))
    assert 1 <= drawn.count("<rect") <= MAX_BARS and drawn.startswith("<svg") and drawn.endswith("</svg>")
