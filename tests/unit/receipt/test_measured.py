"""Reports of the hook under Measured: ``--gpu-memory``, and JAX's compilations and platforms."""

import pytest

from .conftest import H200, Scenario, at, ending, prologue, rows_of, running

GB = 10**9
HELD = {"framework": "tensorflow", "pid": 7, "limit_bytes": 8 * GB}
FAILED = {"framework": "jax", "pid": 7, "failed": "AttributeError: elsewhere"}
JAX = {"jax": "0.11.2", "jax_backends": ["cpu", "cuda"], "jax_compiled": 12, "jax_compile_s": 3.2}


def judged(folder, *lines, key, **agent):
    reported = [at(6 + number, "step", "target", **{key: line}) for number, line in enumerate(lines)]
    events = prologue((H200,)) + sorted(running(12, (H200,)) + reported, key=lambda event: event["t"]) + ending(20)
    return Scenario(events, (H200,), "required", agent=agent).judge(folder)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "8 GB for each process; no process that got it started a GPU"),
        ([HELD], "8 GB, given to TensorFlow; no peak was reported"),
        ([HELD, {**HELD, "peak_bytes": [GB, 7_600_000_000]}], "peak 7.6 GB of 8 GB, as TensorFlow counted"),
        (
            [{**HELD, "peak_bytes": [5 * GB]}, {**HELD, "framework": "jax", "peak_bytes": [6 * GB]}],
            "peak 6 GB of 8 GB, as TensorFlow and JAX counted",
        ),
        ([{**HELD, "framework": "<b>", "peak_bytes": [5 * GB]}], "no process that got it started a GPU"),
        ([{**HELD, "peak_bytes": ["x", -1, None, 1e400, True]}], "no peak was reported"),
        ([FAILED], "limit of 8 GB not enforced"),
    ],
)
def test_memory_limit_is_a_row_and_a_broken_one_a_finding(tmp_path, lines, words):
    receipt = judged(tmp_path, *lines, key="gpu_memory", gpu_memory_bytes=8 * GB)
    assert words in rows_of(receipt, "Measured")["GPU memory limit"]
    findings = [finding.evidence for finding in receipt.findings if finding.id == "gpu-memory-not-held"]
    assert findings == ([("AttributeError: elsewhere",)] if FAILED in lines else [])


def test_run_without_a_memory_limit_has_neither_row_nor_metric(tmp_path):
    receipt = judged(tmp_path, {**HELD, "peak_bytes": [5 * GB]}, key="gpu_memory")
    assert "GPU memory limit" not in rows_of(receipt, "Measured")
    assert not any("gpu_memory" in metric.name for metric in receipt.measurements.metrics)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{**JAX, "jax_compiled": 1}, JAX, {**JAX, "jax_compiled": 1}], "12 compilations took 3.2 s; on cpu, cuda"),
        ([{"framework": "torch"}], None),
        ([{"jax": 7}], None),
        ([{"jax": "0.11", "jax_backends": 3, "jax_compiled": None}], None),
    ],
)
def test_jax_row_is_of_the_process_that_compiled_most(tmp_path, lines, words):
    assert rows_of(judged(tmp_path, *lines, key="training"), "Measured").get("JAX") == words
