"""A JAX script as people write one, with the real JAX on this machine's CPU: what the hook tells of its functions, and
that one which is counted is as good as one that is not."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from seatrial.agent.hook import install as hook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed here"),
]

SCRIPT = """
import copy, functools, inspect, pickle
import jax, jax.numpy as jnp
from jax import export, grad, jit

@jax.jit
def step(w, x):
    "one step"
    return w - 0.1 * grad(lambda w: jnp.mean((x @ w) ** 2))(w)

class Model:
    scale = 2.0
    @functools.partial(jax.jit, static_argnums=0)
    def __call__(self, x): return x * self.scale
    @staticmethod
    @functools.partial(jit, static_argnames=("n",))
    def power(x, n=2): return x ** n

w, x = jnp.ones((8, 2)), jnp.ones((4, 8))
assert (step.__name__, step.__doc__) == ("step", "one step") and list(inspect.signature(step).parameters) == ["w", "x"]
for _ in range(100): w = step(w, x=x)
assert Model()(jnp.ones(3)).tolist() == [2, 2, 2] and Model.power(x, n=3).shape == (4, 8)
assert jax.vmap(step, in_axes=(None, 0))(w, x[None]).shape == (1, 8, 2)
assert jax.jit(step)(w, x).shape == jax.eval_shape(step, w, x).shape == copy.deepcopy(step)(w, x).shape
assert export.export(step)(w, x).call(w, x).shape == (8, 2)
assert step.lower(w, x).compile()(w, x).shape == (8, 2)
jax.lax.fori_loop(0, 3, lambda i, w: step(w, x), w)
with jax.disable_jit(): step(w, x)
try: step(1)
except TypeError as error: assert "missing" in str(error)
else: raise SystemExit("no error")
step.clear_cache()
assert {step: 1}[step] and callable(step)
print("done")
"""


def run(tmp_path, measure):
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "SEATRIAL_EVENTS": str(tmp_path / "events.jsonl"), "JAX_PLATFORMS": "cpu"}
    if measure:
        hook.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_the_script_runs_as_it_does_alone(tmp_path):
    run(tmp_path, measure=False)


def test_calls_and_compilations_are_told(tmp_path):
    run(tmp_path, measure=True)
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert not any("hook_stopped" in line for line in told)
    facts = told[-1]["training"]
    assert facts["jax_backends"] == ["cpu"] and facts["jax_compiled"] > 3 and facts["jax_compile_s"] > 0
    by_name = {each["name"]: each for each in facts["jax_calls"]}
    assert by_name["step"]["calls"] >= 100 and by_name["step"]["seconds"] > 0
    assert by_name["__call__"]["calls"] == 1
