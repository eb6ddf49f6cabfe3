"""JAX in a receipt: the script's functions, how often they were called, and what of the target's word is believed."""

import pytest

from .conftest import H200, Scenario, at, ending, prologue, rows_of, running

FACTS = {
    "jax": "0.11.2",
    "jax_backends": ["cpu", "cuda"],
    "jax_compiled": 12,
    "jax_compile_s": 3.2,
    "jax_calls": [{"name": "step", "calls": 4001, "seconds": 5.0}, {"name": "evaluate", "calls": 1, "seconds": 0.0}],
}


def row(tmp_path, *lines):
    told = [at(6 + number, "step", "target", training=line) for number, line in enumerate(lines)]
    events = prologue((H200,)) + sorted(running(12, (H200,)) + told, key=lambda event: event["t"]) + ending(20)
    made = Scenario(events, (H200,), "required").judge(tmp_path)
    return rows_of(made, "Measured").get("JAX")


def test_the_dispatch_rate_and_compilations(tmp_path):
    words = "step called 4001 times, 800/s; evaluate called 1 time; 12 compilations took 3.2 s; on cpu, cuda"
    assert row(tmp_path, FACTS) == words
    fewer = {**FACTS, "jax_calls": [], "jax_compiled": 1}
    other = tmp_path / "other"
    other.mkdir()
    assert row(other, fewer, FACTS, fewer) == words, "of several processes, the one that trained"


@pytest.mark.parametrize(
    "told",
    [
        {"framework": "torch"},
        {"jax": 7, "jax_calls": "x"},
        {"jax": "0.11", "jax_calls": [{"name": [], "calls": 2}, 7, {"name": "f", "calls": "1e9", "seconds": None}]},
        {"jax": "0.11", "jax_calls": [{"name": "f", "calls": -3, "seconds": -1}], "jax_compiled": None},
    ],
)
def test_what_says_nothing_makes_no_row(tmp_path, told):
    assert row(tmp_path, told) is None
