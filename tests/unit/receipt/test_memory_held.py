"""--gpu-memory in a receipt: the peak beside the limit, and what is said where a framework was not held to it."""

import pytest

from .conftest import H200, Scenario, at, ending, prologue, rows_of, running

GB = 10**9


def receipt(tmp_path, *lines, limit=8 * GB):
    told = [at(6 + number, "step", "target", gpu_memory=line) for number, line in enumerate(lines)]
    events = prologue((H200,)) + sorted(running(12, (H200,)) + told, key=lambda event: event["t"]) + ending(20)
    agent = {"gpu_memory_bytes": limit} if limit else {}
    return Scenario(events, (H200,), "required", agent=agent).judge(tmp_path)


def row(made):
    return rows_of(made, "Measured").get("GPU memory limit")


HELD = {"framework": "tensorflow", "pid": 7, "limit_bytes": 8 * GB}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "8 GB for each process; no process that got it started a GPU"),
        ((HELD,), "8 GB, given to TensorFlow; no peak was reported"),
        ((HELD, {**HELD, "peak_bytes": [10**9, 7_600_000_000]}), "peak 7.6 GB of 8 GB, as TensorFlow counted"),
        (
            ({**HELD, "peak_bytes": [5 * GB]}, {**HELD, "framework": "jax", "peak_bytes": [6 * GB]}),
            "peak 6 GB of 8 GB, as TensorFlow and JAX counted",
        ),
        (({**HELD, "framework": "<b>", "peak_bytes": [5 * GB]},), "no process that got it started a GPU"),
        (({**HELD, "peak_bytes": ["x", -1, None, 1e400, True]},), "no peak was reported"),
        (({"framework": "jax", "pid": 7, "failed": "AttributeError: elsewhere"},), "limit of 8 GB not enforced"),
    ],
)
def test_the_row(tmp_path, lines, words):
    assert words in row(receipt(tmp_path, *lines))


def test_what_was_not_held_is_a_finding(tmp_path):
    made = receipt(tmp_path, {"framework": "jax", "pid": 7, "failed": "AttributeError: elsewhere"})
    [finding] = [finding for finding in made.findings if finding.id == "gpu-memory-not-held"]
    assert finding.evidence == ("AttributeError: elsewhere",)


def test_without_a_limit_there_is_no_row_and_no_metric(tmp_path):
    made = receipt(tmp_path, {**HELD, "peak_bytes": [5 * GB]}, limit=None)
    assert row(made) is None and not any("gpu_memory" in metric.name for metric in made.measurements.metrics)
