"""Two pods of a TensorFlow and of a JAX script on a real cluster find each other by addresses that seatrial sets.

The frameworks are this machine's own, mounted from the node, which is this machine, too: so no image is built.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from cli_project import Project
from engines import CLUSTER, READY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.usefixtures("indexed_jobs"),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image's Python is another one"),
]

TENSORFLOW = """

import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    weight, optimizer = model.trainable_variables[0], tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 1.0) ** 2) / strategy.num_replicas_in_sync
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

@tf.function
def together(x): return strategy.reduce("SUM", strategy.run(step, (x,)), axis=None)

rank = strategy.cluster_resolver.task_id
losses = [float(together(tf.ones((8, 4)) * (rank + 1))) for _ in range(5)]
assert losses[-1] < losses[0]
print("workers", strategy.num_replicas_in_sync, "loss", round(losses[-1], 5), flush=True)
"""

JAX = """
import jax
jax.distributed.initialize()
import jax.numpy as jnp
from jax.experimental import multihost_utils
mine = jnp.array([jax.process_index() + 1.0])
together = multihost_utils.process_allgather(mine).ravel().tolist()
print("workers", jax.process_count(), "loss", sum(together), flush=True)
"""


def site(package: str) -> str:
    """The folder that this machine's Python has the package in."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed here")
    return str(Path(spec.origin).parents[1])


@pytest.mark.parametrize(("package", "script"), [("tensorflow", TENSORFLOW), ("jax", JAX)])
def test_two_pods_train_together(cluster_project: Project, package: str, script: str) -> None:
    project = cluster_project
    project.write("seatrial.toml", f'{READY}{CLUSTER}data = "hostpath:{site(package)}"\n')
    project.write("train.py", script)
    project.run("train.py", "--gpus", "none", "--nodes", "2", "-e", "PYTHONPATH=/data")
    reported = [line for line in project.output().splitlines() if "workers" in line]
    assert len(reported) == 2 and len({line.partition("workers")[2] for line in reported}) == 1, reported
    assert "workers 2" in reported[0]
