"""What can be tried on a script, the most promising first, and what is not tried, with the reason.

Asked again after each change that was kept: a script that waits for data no longer is bound by another thing.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.agent.tune.anatomy import Anatomy

#: Words of ``--only`` → keys of SEATRIAL_TUNE (docs/decisions/0037-tune.md) that they stand for.
NAMES: Dict[str, Tuple[str, ...]] = {
    "workers": ("workers", "persistent_workers", "prefetch_factor"),
    "pin_memory": ("pin_memory", "non_blocking"),
    "tf32": ("tf32",),
    "cudnn_benchmark": ("cudnn_benchmark",),
    "bf16": ("precision",),
    "channels_last": ("channels_last",),
    "fused_optimizer": ("fused_optimizer",),
    "compile": ("compile",),
    "buckets": ("bucket_cap_mb", "gradient_as_bucket_view"),
}

#: Numbers change in these only by the order of sums, or not at all: they need no losses to be kept.
NEUTRAL = ("workers", "pin_memory", "cudnn_benchmark", "channels_last", "fused_optimizer", "buckets")

#: Below this share of the step a thing is not worth a trial: it could win no more than is told from noise.
_LEAST_SHARE = 0.03

#: A GPU that had nothing left to do at half of the marks waits for the host.
_WAITING = 0.5

#: Optimizers that take fused=True. Source: torch/optim (2.13): adagrad, adam, adamw, sgd.
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")

#: Most workers that are tried for one rank, whatever the machine has.
_MOST_WORKERS = 16


class Candidate(NamedTuple):
    """Attributes:

    name: of NAMES. changes: on top of what is kept. share: of the step's time that it can take away.
    slow: its trial compiles first.
    """

    name: str
    changes: Dict[str, Any]
    share: float
    slow: bool = False

    @property
    def words(self) -> str:
        """``workers=8 persistent_workers``."""
        return in_words(self.changes)


def in_words(changes: Dict[str, Any]) -> str:
    told = [key if value is True else "%s=%s" % (key, value) for key, value in sorted(changes.items())]
    return ", ".join(told) or "as it is"


def candidates(
    found: Anatomy, kept: Dict[str, Any], tried: Sequence[Dict[str, Any]], cpus: int, only: Sequence[str]
) -> Tuple[List[Candidate], Dict[str, str]]:
    """(what to try next, the most promising first; name → why it is not tried).

    Args:
        kept: changes so far, under which ``found`` was measured. tried: changes that were tried already.
        cpus: cores for one rank.
    """
    ways: List[Tuple[str, List[Candidate], Optional[str]]] = [
        _workers(found, kept, tried, cpus),
        _pinning(found),
        *_arithmetic(found),
        _fused(found),
        _compile(found),
        _buckets(found),
    ]
    able: List[Candidate] = []
    reasons: Dict[str, str] = {}
    for name, made, reason in ways:
        if only and name not in only:
            continue
        fresh = [each for each in made if each.changes not in tried and not each.changes.items() <= kept.items()]
        if fresh and not reason:
            able += fresh
        elif reason:
            reasons[name] = reason
    return sorted(able, key=lambda each: -each.share), reasons


def _workers(
    found: Anatomy, kept: Dict[str, Any], tried: Sequence[Dict[str, Any]], cpus: int
) -> Tuple[str, List[Candidate], Optional[str]]:
    now = found.workers
    if now is None:
        return "workers", [], "no DataLoader gives the batches"
    if found.data < _LEAST_SHARE:
        return "workers", [], "%.0f %% of a step waits for data" % (100 * found.data)
    most = max(1, min(_MOST_WORKERS, cpus))
    refused = {each.get("workers") for each in tried if "workers" in each}
    # The second number of a script that has none is for where the first failed, by shared memory or by load. Later
    # also more than there are cores: workers may wait for a disk themselves.
    counts = [min(most, 2 * now), most, 2 * most] if now else [min(most, 8), max(1, most // 4)]
    able = [
        Candidate("workers", {"workers": count, "persistent_workers": True}, found.data)
        for count in dict.fromkeys(counts)
        if count > now and count not in refused
    ][:1]
    if "workers" in kept and "prefetch_factor" not in kept and found.data > 2 * _LEAST_SHARE:
        able.append(Candidate("workers", {"prefetch_factor": 6}, found.data / 2))
    return "workers", able, None


def _pinning(found: Anatomy) -> Tuple[str, List[Candidate], Optional[str]]:
    if found.device != "cuda":
        return "pin_memory", [], "the script trains on the CPU"
    if found.workers is None:
        return "pin_memory", [], "no DataLoader gives the batches"
    if found.copy < _LEAST_SHARE / 2:
        return "pin_memory", [], "%.1f %% of a step copies to the GPU" % (100 * found.copy)
    changes = {"pin_memory": True, "non_blocking": True}
    if found.pinned:
        changes = {"non_blocking": True}
    return "pin_memory", [Candidate("pin_memory", changes, found.copy)], None


def _arithmetic(found: Anatomy) -> List[Tuple[str, List[Candidate], Optional[str]]]:
    """Cheaper arithmetic, where the GPU is what the step waits for."""
    names = ("tf32", "bf16", "channels_last", "cudnn_benchmark")
    if found.device != "cuda":
        return [(name, [], "the script trains on the CPU") for name in names]
    busy = found.computing * (1.0 - (found.gpu_waits or 0.0))
    if busy < _LEAST_SHARE:
        return [(name, [], "the GPU waits for the script: faster arithmetic would wait as well") for name in names]
    lower = found.autocast or (found.dtype if found.dtype in ("bfloat16", "float16") else None)
    taken = "the script computes in %s already" % lower if lower else None
    return [
        ("bf16", [Candidate("bf16", {"precision": "bf16"}, 0.5 * busy)], taken),
        ("tf32", [Candidate("tf32", {"tf32": True}, 0.45 * busy)], taken),
        ("channels_last", [Candidate("channels_last", {"channels_last": True}, 0.25 * busy)], None),
        ("cudnn_benchmark", [Candidate("cudnn_benchmark", {"cudnn_benchmark": True}, 0.15 * busy)], None),
    ]


def _fused(found: Anatomy) -> Tuple[str, List[Candidate], Optional[str]]:
    name = "fused_optimizer"
    if found.device != "cuda":
        return name, [], "the script trains on the CPU"
    if found.optimizer_name not in _FUSED:
        return name, [], "%s has no fused form" % (found.optimizer_name or "its optimizer")
    if found.optimizer < _LEAST_SHARE:
        return name, [], "%.0f %% of a step is the optimizer's" % (100 * found.optimizer)
    return name, [Candidate(name, {"fused_optimizer": True}, 0.6 * found.optimizer)], None


def _compile(found: Anatomy) -> Tuple[str, List[Candidate], Optional[str]]:
    if found.compile_s or found.cuda_graph:
        return "compile", [], "the script compiles or captures its steps already"
    if found.device != "cuda":
        return "compile", [], "the script trains on the CPU"
    if found.computing < 0.1:
        return "compile", [], "%.0f %% of a step computes" % (100 * found.computing)
    waits = found.gpu_waits or 0.0
    plain = Candidate("compile", {"compile": "default"}, 0.3 * found.computing, slow=True)
    graphs = Candidate("compile", {"compile": "reduce-overhead"}, (0.1 + 0.4 * waits) * found.computing, slow=True)
    return "compile", [plain, graphs] if waits < _WAITING else [graphs, plain], None


def _buckets(found: Anatomy) -> Tuple[str, List[Candidate], Optional[str]]:
    if found.parallel != "DDP":
        return "buckets", [], "one process trains" if not found.parallel else "%s has none" % found.parallel
    able = [
        Candidate("buckets", {"gradient_as_bucket_view": True}, 0.05 + 0.1 * found.communication),
        Candidate("buckets", {"bucket_cap_mb": 100}, 0.04 + 0.1 * found.communication),
    ]
    return "buckets", able, None
