"""Advice in the words of the framework that trains. The rules speak PyTorch's; here is what does the same elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from seatrial.diagnosis.diagnosis import Advice

_LARGER_EVALUATION = "a larger batch for evaluation: no gradients are kept, so it fits more"
_EQUAL_SHARES = "the same work for each rank: equal shards of the data, none for rank 0 alone"
_ACCUMULATION = "gradient accumulation: one all-reduce for several batches"

#: What advice of PyTorch's begins with → JAX's; None: nothing is like it, or it is the default. Sources: docs.jax.dev
#: (jit, lax.scan, device_put, sharding), flax.readthedocs.io, orbax.readthedocs.io, google-grain.readthedocs.io.
_JAX: Mapping[str, str | None] = {
    "torch.compile(model, mode=": "jax.jit around the whole step, and jax.lax.scan over several: one launch for all",
    "torch.compile(model)": "jax.jit around the whole step",
    "torch.autocast(": "bfloat16 in the layers (Flax: dtype=jnp.bfloat16)",
    "torch.set_float32_matmul_precision": None,
    "DataLoader(": "make the batches ahead, in other processes: grain, or tf.data with prefetch",
    "more loader workers:": "make the batches ahead, in other processes: grain, or tf.data with prefetch",
    "make the batches in a Dataset": "make the batches ahead, in other processes: grain, or tf.data with prefetch",
    "make them with torch": "make them with jax.numpy on the GPU, whole batches at a time",
    "pin_memory=True": "jax.device_put of the next batch while the step runs",
    "fused=True": "the optimizer's update inside of the jitted step",
    "sparse gradients": None,
    "no .item()": "no float(), print or block_until_ready() in every step",
    "no print, .item()": "no float(), print or if on a device's array within a step",
    "gradient accumulation with": _ACCUMULATION,
    "DDP with": "gradients in bfloat16 for the all-reduce: half to send",
    "a larger batch for evaluation,": _LARGER_EVALUATION,
    "copy to pinned host memory": "save in the background: orbax's asynchronous checkpoints",
    "the same work for each rank:": _EQUAL_SHARES,
    "no more workers": "no more worker processes and threads than cores",
    "one process per GPU:": "the batch divided over all GPUs: jax.sharding with a mesh of them",
}

_XLA = "XLA for the whole step: tf.function(jit_compile=True), or jit_compile=True in Keras' compile"
_TF_DATA = "dataset.map(…, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)"

#: The same for TensorFlow and Keras. Sources: tensorflow.org/guide (data_performance, mixed_precision, function,
#: distributed_training), keras.io (Model.compile), tensorflow.org/api_docs (CheckpointOptions, prefetch_to_device).
_TENSORFLOW: Mapping[str, str | None] = {
    "torch.compile(model, mode=": "several steps in one call: tf.function, or steps_per_execution=16 in Keras' compile",
    "torch.compile(model)": _XLA,
    "torch.autocast(": 'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    "torch.set_float32_matmul_precision": None,
    "DataLoader(": _TF_DATA,
    "more loader workers:": _TF_DATA,
    "make the batches in a Dataset": _TF_DATA,
    "make them with torch": "make them with TensorFlow's operations on the GPU, whole batches at a time",
    "pin_memory=True": 'tf.data.experimental.prefetch_to_device("/GPU:0"), last of all in the dataset',
    "fused=True": _XLA,
    "sparse gradients": None,
    "no .item()": "no .numpy(), float() or print in every step",
    "no print, .item()": "no .numpy(), float() or print on a tensor within a step",
    "gradient accumulation with": _ACCUMULATION,
    "DDP with": None,
    "a larger batch for evaluation,": _LARGER_EVALUATION,
    "copy to pinned host memory": "save in the background: tf.train.CheckpointOptions(enable_async=True)",
    "the same work for each rank:": _EQUAL_SHARES,
    "no more workers": "no more worker processes and threads than cores",
    "one process per GPU:": "tf.distribute.MirroredStrategy over all GPUs",
}

_INSTEAD = {"jax": _JAX, "tensorflow": _TENSORFLOW}


def in_framework(advice: Iterable[Advice], framework: str) -> tuple[Advice, ...]:
    """The same advice for ``jax`` or ``tensorflow``, each change once; as it is for anything else."""
    words = _INSTEAD.get(framework, {})
    told: dict[str, Advice] = {}
    for each in advice:
        beginning = next((beginning for beginning in words if each.change.startswith(beginning)), None)
        change = each.change if beginning is None else words[beginning]
        if change is not None:
            told.setdefault(change, replace(each, change=change))
    return tuple(told.values())
