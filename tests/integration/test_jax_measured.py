"""Run a JAX script with the real JAX on this machine's CPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import install

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed here"),
]

SCRIPT = """
import jax, jax.numpy as jnp

@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

w, x = jnp.ones((8, 2)), jnp.ones((4, 8))
for _ in range(100): w = step(w, x=x)
for n in range(1, 5): step(w, jnp.ones((n, 8)))
print("done")
"""


def run(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "SEATRIAL_EVENTS": str(tmp_path / "events.jsonl"), "JAX_PLATFORMS": "cpu"}
    install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_compilations_and_backends_are_reported(tmp_path):
    run(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert not any("hook_stopped" in line for line in lines)
    facts = lines[-1]["training"]
    assert facts["framework"] == "jax" and facts["jax_backends"] == ["cpu"]
    assert facts["jax_compiled"] > 3 and facts["jax_compile_s"] > 0
