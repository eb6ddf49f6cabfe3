"""ConfigFile: seatrial.toml as people write it. Flags have the same shape, so the same model reads both.

    name = "baseline"
    target = "train.py"              # or module = "package.train"; a recipe's name works too
    args = ["--epochs", "5"]
    on = "docker"                    # auto, local, docker, podman, k8s
    gpus = 2                         # auto, none, all, 2, "device=0,2", "GPU-…": the grammar of --gpus
    data = "./data"                  # mounted read-only at /data; "./data:rw" opens it
    models = "./models"
    memory = "16GB"
    shm_size = "4g"
    gpu_memory = "4GB"
    timeout = "2h"
    secrets = ["HF_TOKEN"]           # names of variables of yours; their values are shown nowhere

    [env]
    OMP_NUM_THREADS = 4

    [image]
    base = "python:3.11-slim-bookworm"
    system_packages = ["gcc"]

    [criteria]
    mean_utilization = 70            # percent; false: not judged
    finished_within = "10m"
    max_image_size = "4GB"
    model = "models/*.pth"
    test_accuracy = ">= 0.985"       # any other name: a metric the script reports, and its condition

    [watch]
    hang_after = "10m"               # no step, no output, nothing computed
    webhook = "https://chat.example.org/hook"   # or command = "…"; for what the watchdog finds

    [notify]                         # when the run has ended, on this machine
    command = 'notify-send seatrial "$SEATRIAL_MESSAGE"'

    [sweep]                          # seatrial sweep
    search = "tpe"
    trials = 40
    metric = "accuracy:max"

    [sweep.set]
    lr = "log:1e-5..1e-1"
    batch = [32, 64, 128]

In pyproject.toml the same keys stand under ``[tool.seatrial]``. Relative paths count from the file's folder.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from seatrial.job.cluster_config import Nodes
from seatrial.job.keys import Listed, typed_keys
from seatrial.job.model import Requests
from seatrial.job.sweep_table import SweepTable

#: What a file begins with: in the schema, and where all keys are listed.
_FIRST = ("name", "target", "module", "args", "on", "gpus", "nodes")


class ConfigFile(Requests):
    """seatrial.toml: what to run, on which GPUs, with which limits, and what a good run is."""

    model_config = ConfigDict(defer_build=False)

    target: str | None = Field(default=None, description="Script (a path) or recipe to run.")
    module: str | None = Field(default=None, description="Module to run, as for python -m.")
    args: Listed[str] = Field(default=(), description="Arguments of the target; replaced by arguments after --.")
    nodes: Nodes = Field(default=1, description="Number of nodes (machines or pods), or a list of host names.")
    sweep: SweepTable = Field(default=SweepTable(), description="What seatrial sweep searches.")


def file_keys() -> list[str]:
    """The keys outside of tables, and the tables, in the order in which people write them."""
    return list(dict.fromkeys([*_FIRST, *typed_keys(ConfigFile)]))


def json_schema() -> dict[str, Any]:
    """JSON Schema of seatrial.toml, for editors; ``seatrial init --schema`` prints it."""
    schema = ConfigFile.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {key: schema["properties"][key] for key in file_keys()},
        "title": "seatrial.toml",
    }
