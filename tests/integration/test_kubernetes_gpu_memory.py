"""--gpu-memory in the pods of a real cluster: the limit reaches the framework in each, and the receipt has the peak.

The image has a driver made for tests, with a GPU of 1 GiB, and a small package in JAX's place; the node reports that it
has two GPUs. The script can do without JAX, so the GPU is tried by the driver alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from cli_project import Project
from engines import CLUSTER, report_gpus
from fake_driver import compile_driver
from seatrial.backends.containers.docker_and_podman import Docker
from seatrial.backends.kubernetes.client import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubernetes,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]

DOCKERFILE = """
FROM python:3.11-slim-bookworm
COPY . /site
ENV PYTHONPATH=/site LD_LIBRARY_PATH=/site FAKE_CUDA_GPUS=de421f490f0c00000000000000000001
"""
TAG = "seatrial-test/gpu-memory:1"

JAX = """
class Device:
    platform = "gpu"
    def memory_stats(self): return {"peak_bytes_in_use": 200 * 2**20}
def local_devices(): return [Device()]
"""
BRIDGE = "_backends = {'cuda': 1}"
CLIENT = "def make_c_api_client(name, options=None): print('client', sorted(options.items()), flush=True)"

SCRIPT = """
import os
try:
    import jax, jax._src.xla_bridge
    from jaxlib import xla_client
except ImportError:
    jax = None
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".95"
fraction = float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
xla_client.make_c_api_client("cuda", {"memory_fraction": fraction, "allocator": "platform"})
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, node_docker: Docker) -> Iterator[str]:
    site = tmp_path_factory.mktemp("site")
    for name, text in (("jax", JAX), ("jax/_src", ""), ("jaxlib", "")):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(text)
    (site / "jax" / "_src" / "xla_bridge.py").write_text(BRIDGE)
    (site / "jaxlib" / "xla_client.py").write_text(CLIENT)
    compile_driver(site)
    (site / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run([*node_docker.call, "build", "-q", "-t", TAG, site], check=True, stdout=subprocess.DEVNULL)
    yield TAG
    subprocess.run([*node_docker.call, "image", "rm", "-f", TAG], check=False, stdout=subprocess.DEVNULL)


@pytest.fixture
def project(cluster_project: Project, image: str) -> Project:
    cluster_project.write("seatrial.toml", f'[image]\nready = "{image}"\n{CLUSTER}')
    cluster_project.write("train.py", SCRIPT)
    return cluster_project


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[None]:
    report_gpus(cluster, "2")
    yield
    report_gpus(cluster, None)


def test_a_script_that_asks_for_nearly_all_gets_a_quarter(project: Project, two_gpus: None) -> None:
    project.run("train.py", "--gpus", "1", "--gpu-memory", "256MiB", exit_code=3)  # no context is seen
    assert project.output() == "client [('allocator', 'default'), ('memory_fraction', 0.25)]\n"
    reported = project.receipt()["measurements"]["gpu_memory"]
    assert reported == {"limit_bytes": 256 * 2**20, "frameworks": ["JAX"], "peak_bytes": 200 * 2**20, "failed": None}


def test_two_pods_are_held_each(project: Project, two_gpus: None, indexed_jobs: None) -> None:
    words = ["train.py", "--gpus", "1", "--gpu-memory", "256MiB", "--nodes", "2", "--launcher", "none"]
    project.run(*words, exit_code=3)
    assert project.output().count("client [('allocator', 'default'), ('memory_fraction', 0.25)]") == 2
    reported = project.receipt()["measurements"]["gpu_memory"]
    assert (reported["frameworks"], reported["peak_bytes"]) == (["JAX"], 200 * 2**20)
