"""List the changes that ``seatrial tune`` and ``[tune]`` can make to a torch script from outside.

The host makes the keys of ``[tune]`` from it, the driver its groups, the hook its refusals, the receipt its sentences.
A new change is a row here, an ``apply`` in the hook's ``change_*.py`` and a rule in the driver's ``candidates.py``.
"""

from typing import Any, Dict, NamedTuple, Tuple

_NO_LOADER = "no DataLoader was iterated for training"
_NO_MODULE = "no module was called for training"
_NO_STEP = "no training step was seen"
_NO_DDP = "the script makes no DistributedDataParallel"


class Tunable(NamedTuple):
    """One change.

    Attributes:
        key: of ``[tune]``. group: the word of ``--only``; "" for a change that is not tried.
        kind: ``flag``, ``count:LEAST-MOST`` or ``choice:VALUE,VALUE``.
        help: of the key. not_seen: why it was not made where nothing in the script called for it.
        by_hand: the sentence that makes it in the script; ``{}`` is the value.
        neutral: sums come in another order at most, so it is kept without losses. bundle: may be tried with others.
    """

    key: str
    group: str
    kind: str
    help: str
    not_seen: str
    by_hand: str
    neutral: bool = False
    bundle: bool = False


# fmt: off
TUNABLES = (
    Tunable("workers", "workers", "count:0-512", "DataLoader's num_workers.", _NO_LOADER,
            "Give the training DataLoader num_workers={}.", neutral=True),
    Tunable("persistent_workers", "workers", "flag", "DataLoader's persistent_workers.", _NO_LOADER,
            "Give the training DataLoader persistent_workers=True.", neutral=True),
    Tunable("pin_memory", "pin_memory", "flag", "DataLoader's pin_memory.", _NO_LOADER,
            "Give the training DataLoader pin_memory=True.", neutral=True, bundle=True),
    Tunable("prefetch_factor", "workers", "count:1-1024", "DataLoader's prefetch_factor.", _NO_LOADER,
            "Give the training DataLoader prefetch_factor={}.", neutral=True),
    Tunable("batch_size", "", "count:1-", "DataLoader's batch_size; changes what is trained.", _NO_LOADER,
            "Set the batch size to {}."),
    Tunable("non_blocking", "pin_memory", "flag", "Copies of pinned tensors do not wait.",
            "no tensor in pinned memory was copied to the GPU",
            "Copy batches with .to(device, non_blocking=True).", neutral=True, bundle=True),
    Tunable("tf32", "tf32", "flag", "TF32 for float32 matmuls and convolutions.", _NO_STEP,
            'After the imports, write torch.set_float32_matmul_precision("high").', bundle=True),
    Tunable("cudnn_benchmark", "cudnn_benchmark", "flag", "torch.backends.cudnn.benchmark.", _NO_STEP,
            "After the imports, write torch.backends.cudnn.benchmark = True.", neutral=True, bundle=True),
    Tunable("precision", "bf16", "choice:bf16", "Autocast around the model's forward pass.", _NO_MODULE,
            'Call the model inside `with torch.autocast("cuda", dtype=torch.bfloat16):`.', bundle=True),
    Tunable("channels_last", "channels_last", "flag", "Memory format of model and images.", _NO_MODULE,
            "After the model's .to(device), write model = model.to(memory_format=torch.channels_last).",
            neutral=True, bundle=True),
    Tunable("fused_optimizer", "fused_optimizer", "flag", "fused=True where the optimizer knows it.",
            "no optimizer of torch has stepped", "Give the optimizer fused=True.", neutral=True, bundle=True),
    Tunable("compile", "compile", "choice:default,reduce-overhead", "torch.compile of the model, in this mode.",
            _NO_MODULE, 'After the model\'s .to(device), write model.compile(mode="{}").'),
    Tunable("bucket_cap_mb", "buckets", "count:1-", "DistributedDataParallel's bucket_cap_mb.", _NO_DDP,
            "Give DistributedDataParallel bucket_cap_mb={}.", neutral=True),
    Tunable("gradient_as_bucket_view", "buckets", "flag", "DistributedDataParallel's gradient_as_bucket_view.", _NO_DDP,
            "Give DistributedDataParallel gradient_as_bucket_view=True.", neutral=True),
)
# fmt: on

#: Word of ``--only`` → its keys.
GROUPS: Dict[str, Tuple[str, ...]] = {
    group: tuple(each.key for each in TUNABLES if each.group == group)
    for group in dict.fromkeys(each.group for each in TUNABLES if each.group)
}

#: Groups of neutral changes only, and those that may be tried together.
NEUTRAL = {group for group in GROUPS if all(each.neutral for each in TUNABLES if each.group == group)}
BUNDLED = {group for group in GROUPS if all(each.bundle for each in TUNABLES if each.group == group)}


def in_words(changes: Dict[str, Any]) -> str:
    """Return ``compile=default, workers=8``; "" without changes."""
    return ", ".join(key if value is True else "%s=%s" % (key, value) for key, value in sorted(changes.items()))
