"""JAX in a receipt: its compilations and platforms, and what of the target's word is believed."""

import pytest

from .conftest import H200, Scenario, at, ending, prologue, rows_of, running

FACTS = {"jax": "0.11.2", "jax_backends": ["cpu", "cuda"], "jax_compiled": 12, "jax_compile_s": 3.2}


def row(tmp_path, *lines):
    told = [at(6 + number, "step", "target", training=line) for number, line in enumerate(lines)]
    events = prologue((H200,)) + sorted(running(12, (H200,)) + told, key=lambda event: event["t"]) + ending(20)
    made = Scenario(events, (H200,), "required").judge(tmp_path)
    return rows_of(made, "Measured").get("JAX")


def test_row_is_of_the_process_that_compiled_most(tmp_path):
    fewer = {**FACTS, "jax_compiled": 1}
    assert row(tmp_path, fewer, FACTS, fewer) == "12 compilations took 3.2 s; on cpu, cuda"


@pytest.mark.parametrize(
    "facts", [{"framework": "torch"}, {"jax": 7}, {"jax": "0.11", "jax_backends": 3, "jax_compiled": None}]
)
def test_unusable_facts_make_no_row(tmp_path, facts):
    assert row(tmp_path, facts) is None
