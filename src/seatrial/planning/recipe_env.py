"""Variables that training jobs are configured by on clusters, as flags of our recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seatrial.errors import UsageError
from seatrial.job.model import Job

#: Variable → the recipes' flag.
FLAGS = {
    "EPOCHS": "--epochs",
    "BATCH_SIZE": "--batch",
    "LEARNING_RATE": "--learning-rate",
    "LR": "--learning-rate",
    "MIXED_PRECISION": "--precision",
    "SEED": "--seed",
}

#: What people write for MIXED_PRECISION → the recipes' names. "no" and the likes are Accelerate's.
PRECISIONS = {"true": "bf16", "1": "bf16", "yes": "bf16", "false": "fp32", "0": "fp32", "no": "fp32"}


def flags_of_env(env: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """Flags for the variables that are set; a flag among the target's own arguments wins."""
    given = {word.partition("=")[0] for word in args}
    flags: list[str] = []
    for name, flag in FLAGS.items():
        if name in env and flag not in given:
            value = PRECISIONS.get(env[name].lower(), env[name]) if name == "MIXED_PRECISION" else env[name]
            flags += [flag, value]
    return flags


def with_env_flags(job: Job) -> Job:
    """A recipe's job with its variables as arguments. Raises UsageError when DATASET_TYPE names another recipe."""
    if job.target.kind != "recipe":
        return job
    dataset = job.env.get("DATASET_TYPE")
    if dataset is not None and dataset.lower() not in (job.target.value, job.target.value.partition("-")[0]):
        raise UsageError(
            f"DATASET_TYPE={dataset} and the recipe {job.target.value} contradict each other",
            run=f"seatrial run {dataset.lower()}",
        )
    flags = flags_of_env(job.env, job.target.args)
    if not flags:
        return job
    return job.model_copy(update={"target": job.target.model_copy(update={"args": (*flags, *job.target.args)})})
