"""Two nodes of a TensorFlow and of a JAX script, unmodified, with the real frameworks on this machine's CPU: as two
agents, and as two runs in containers."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_process import Agent
from cli_project import Project
from here import absent, free_ports

pytestmark = pytest.mark.slow

TENSORFLOW = """
import json, os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(2.0)), axis=None)
print("replicas", strategy.num_replicas_in_sync, "sum", float(total), flush=True)
"""

JAX = """
import jax
jax.distributed.initialize()
import jax.numpy as jnp
print("processes", jax.process_count(), "devices", jax.device_count() // jax.local_device_count(), flush=True)
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(TENSORFLOW, "replicas 2 sum 4.0", marks=absent("tensorflow")),
        pytest.param(JAX, "processes 2 devices 2", marks=absent("jax")),
    ],
)
def test_both_nodes_join(tmp_path, script, printed):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    agents = []
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        where = {"nodes": 2, "node_rank": rank, "rendezvous": addresses[0], "workers": addresses}
        env = {"SLURM_LOCALID": "0"} if rank else {}
        agents.append(Agent(folder, script, measure_steps=True, env=env, **where))
    env = {key: value for key, value in os.environ.items() if "_proxy" not in key.lower()}
    running = [
        subprocess.Popen(agent.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) for agent in agents
    ]
    ended = [process.communicate(timeout=300) for process in running]
    for process, (out, err) in zip(running, ended, strict=True):
        assert process.returncode == 0, err.decode()[-2000:]
        assert printed in out.decode()


SUBNET = "172.30.214"


@pytest.fixture
def network():
    """Two containers get its first addresses, in the order in which they start."""
    name = f"seatrial-test-workers-{os.getpid()}"
    made = subprocess.run(
        ["docker", "network", "create", "--subnet", f"{SUBNET}.0/24", name], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no network: {made.stderr.strip()[-200:]}")
    yield name
    subprocess.run(["docker", "network", "rm", name], capture_output=True, check=False)


@pytest.mark.docker
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image's Python is another one")
@pytest.mark.parametrize(
    ("package", "script", "printed"),
    [
        pytest.param("tensorflow", TENSORFLOW, "replicas 2 sum 4.0", marks=absent("tensorflow")),
        pytest.param("jax", JAX, "processes 2 devices 2", marks=absent("jax")),
    ],
)
def test_two_containers_join(tmp_path, environ, docker_backend, network, package, script, printed):
    """Start two workers as on two hosts; this machine's frameworks are mounted, so no image is built."""
    site = Path(importlib.util.find_spec(package).origin).parents[1]
    hosts = f"{SUBNET}.2,{SUBNET}.3"
    projects = [Project(tmp_path / f"node{rank}", "docker", environ, ("docker",)) for rank in (0, 1)]
    running = []
    for rank, project in enumerate(projects):
        project.write("seatrial.toml", '[image]\nready = "python:3.11-slim-bookworm"\n')
        project.write("train.py", script)
        words = ["train.py", "--gpus", "none", "--nodes", hosts, "--rank-of", str(rank), "--network", network]
        running.append(project.start(*words, "--data", str(site), "-e", "PYTHONPATH=/data"))
        if not rank:  # it has the first address
            listed = ["docker", "ps", "-q", "--filter", f"network={network}"]
            project.wait_for(lambda listed=listed: subprocess.run(listed, capture_output=True).stdout)
    try:
        for process in running:
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0 and printed in out, err[-2000:]
    finally:
        for process in running:
            process.kill()
        for project in projects:
            project.clean()
