"""List what can be tried on a script, the most promising first, and what is not tried, with the reason.

The list is made anew after each kept change: a script that no longer waits for data is bound by something else.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.agent.tune.trial import TuneTrial
from seatrial.common.signals import REGIONS, number, numbers, refined
from seatrial.common.tunables import BUNDLED, GROUPS

#: Parts of a training script outside of its steps.
_NOT_OF_STEPS = ("evaluation", "checkpoint")
#: Joins the names of changes that are tried in one trial.
BESIDE = "+"
#: Trials that each change needs alone: one, and a second one where it is close.
_TRIALS_EACH = 2.5
#: Below this share of the step a thing is not worth a trial: its gain would be lost in noise.
_LEAST_SHARE = 0.03
#: Optimizers that take fused=True. Source: torch/optim (2.13): adagrad, adam, adamw, sgd.
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
#: Most workers that are tried for one rank, however many the machine has.
_MOST_WORKERS = 16
#: Below this share of a step few workers are tried first: many take time from the thread that trains. A trial of
#: another change that waits this long for data could not show its gain.
_MUCH_DATA = 0.25
#: Passes of fewer batches start their workers so often that it matters.
_SHORT_PASS = 400
#: Above this share of marks without work for it the GPU waits for the script's Python.
_LAUNCH_BOUND = 0.5


class TrialAnatomy:
    """Shares of a trial's step time, 0 to 1, and the facts of its training.

    A number that was not reported is 0: nothing that rests on it is tried. ``gpu_waits``: share of marks at which the
    GPU had nothing left to do; None without marks. ``workers``: of the loader; None if no DataLoader gives the batches.
    ``in_pass``: batches in a pass, 0 if unknown.
    """

    def __init__(self, trial: TuneTrial) -> None:
        facts, window = trial.facts, _dict(trial.anatomy, "window")
        measured = numbers((trial.report or {}).get("regions"))
        whole = {name: spent for name, spent in measured.items() if name not in _NOT_OF_STEPS}
        regions = refined(whole, numbers(window.get("regions")))
        seconds = sum(regions.values()) or 1.0
        shares = {name: regions.get(name, 0.0) / seconds for name in REGIONS}
        self.data, self.copy, self.optimizer = shares["data"], shares["copy"], shares["optimizer"]
        self.sync, self.communication = shares["sync"], shares["communication"]
        self.computing = sum(shares[name] for name in ("other", "forward", "backward", "sync", "optimizer"))
        caught = window.get("caught_up")
        marks = caught if isinstance(caught, list) and len(caught) == 2 and caught[1] else None
        self.gpu_waits: Optional[float] = marks[0] / marks[1] if marks else None
        loader = _dict(facts, "loader")
        self.workers = int(number(loader.get("workers"))) if isinstance(facts.get("loader"), dict) else None
        self.persistent, self.pinned = bool(loader.get("persistent_workers")), bool(loader.get("pin_memory"))
        self.in_pass = int(number(loader.get("length")))
        self.device, self.dtype = str(facts.get("device", "")), str(facts.get("parameter_dtype", ""))
        self.autocast, self.parallel = facts.get("autocast"), facts.get("parallel")
        self.optimizer_name, self.fused = str(facts.get("optimizer", "")), bool(facts.get("fused"))
        self.convolutions, self.cuda_graph = bool(facts.get("convolutions")), bool(facts.get("cuda_graph"))
        self.compile_s = number(trial.anatomy.get("compile_s"))


def _dict(values: Dict[str, Any], key: str) -> Dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


class TuneCandidate(NamedTuple):
    """Attributes:

    name: of GROUPS. changes: on top of what is kept. share: of the step's time that it can take away.
    slow: its trial compiles first.
    """

    name: str
    changes: Dict[str, Any]
    share: float
    slow: bool = False


class Way(NamedTuple):
    """One of GROUPS: its candidates, or why it cannot be done, or why it is not worth a trial."""

    name: str
    able: List[TuneCandidate]
    cannot: Optional[str] = None
    not_worth: Optional[str] = None


def candidates(
    found: TrialAnatomy,
    kept: Dict[str, Any],
    tried: Sequence[Dict[str, Any]],
    cpus: int,
    only: Sequence[str],
    slow_costs: float = 3.0,
    trials_left: float = 1e9,
) -> Tuple[List[TuneCandidate], Dict[str, str]]:
    """Return (what to try next, the most promising for its time first; name → why it is not tried).

    Args:
        kept: changes so far, under which ``found`` was measured. tried: changes that were tried already.
        cpus: cores for one rank. only: names that are tried, then even where they promise nothing.
        slow_costs: trials that one which compiles takes the time of. trials_left: so many can still be made: where
            they are few, what takes no time of its own to try is tried in one trial.
    """
    ways = (
        _workers(found, kept, tried, cpus),
        _pinning(found),
        *_arithmetic(found, kept),
        _fused(found),
        _compile(found, kept),
        _buckets(found),
    )
    able: List[TuneCandidate] = []
    reasons: Dict[str, str] = {}
    for way in ways:
        if only and way.name not in only:
            continue
        reason = way.cannot or (None if way.name in only else way.not_worth)
        was_tried = any(set(each) & set(GROUPS[way.name]) for each in tried)
        if reason is None:
            untried = [each for each in way.able if each.changes not in tried]
            able += [each for each in untried if not each.changes.items() <= kept.items()]
        elif not was_tried:
            reasons[way.name] = reason
    if not only or "workers" in only:
        able = [_fed(each, found, kept, tried, cpus) if each.slow else each for each in able]
    if trials_left < _TRIALS_EACH * len(able) + slow_costs:
        bundle = _together(able)
        able += [bundle] if bundle and bundle.changes not in tried else []
    return sorted(able, key=lambda each: -each.share / (slow_costs if each.slow else 1)), reasons


def _together(able: Sequence[TuneCandidate]) -> Optional[TuneCandidate]:
    """Return one candidate of all that changes arithmetic, copies or the optimizer; None for fewer than two."""
    members = [each for each in able if each.name in BUNDLED]
    if len(members) < 2:
        return None
    left, changes = 1.0, {}
    for each in members:
        left *= 1.0 - each.share
        changes.update(each.changes)
    return TuneCandidate(BESIDE.join(each.name for each in members), changes, 1.0 - left)


def with_workers(
    behind: TuneCandidate, found: TrialAnatomy, kept: Dict[str, Any], tried: Sequence[Dict[str, Any]], cpus: int
) -> Optional[TuneCandidate]:
    """Return the same change with more workers, where its own trial (``found``) waited for the loader; None where not.

    Source: SimpleDLA on CIFAR-10, an H200, two workers. Its steps took 16 ms and waited 1 % for data. With CUDA graphs
    they take 5 ms where no loader is; in the tune they took 17.
    """
    if "workers" in behind.changes or found.data < _MUCH_DATA:
        return None
    numbers = [each for each in _workers(found, kept, tried, cpus).able if "workers" in each.changes]
    if not numbers:
        return None
    name = BESIDE.join((numbers[0].name, behind.name))
    return TuneCandidate(name, {**numbers[0].changes, **behind.changes}, found.data, behind.slow)


def _fed(
    behind: TuneCandidate, found: TrialAnatomy, kept: Dict[str, Any], tried: Sequence[Dict[str, Any]], cpus: int
) -> TuneCandidate:
    """Return a change that compiles, with as many workers as the steps that it promises need.

    While a step does not wait for its loader, nobody knows how much faster the loader is. To find out by a second trial
    would compile again. Source: SimpleDLA on CIFAR-10 once more; its two workers give a batch in 15 ms.
    """
    now = found.workers
    if not now or behind.share < _MUCH_DATA:
        return behind
    count = min(_MOST_WORKERS, cpus, _enough(now, behind.share))
    if count < 2 * now or any(each.get("workers") for each in (kept, *tried)):
        return behind
    changes = {"workers": count, "persistent_workers": True, **behind.changes}
    return TuneCandidate(BESIDE.join(("workers", behind.name)), changes, behind.share, behind.slow)


def _workers(found: TrialAnatomy, kept: Dict[str, Any], tried: Sequence[Dict[str, Any]], cpus: int) -> Way:
    if (now := found.workers) is None:
        return Way("workers", [], "no DataLoader gives the batches")
    most = max(1, min(_MOST_WORKERS, cpus))
    refused = {each.get("workers") for each in tried if "workers" in each}
    # A second number of workers is for scripts where the first failed, by shared memory or by load. It may later exceed
    # the cores: workers may themselves wait for a disk.
    first = min(most, 8 if found.data >= _MUCH_DATA else 2)
    counts = [min(most, _enough(now, found.data)), most, 2 * most] if now else [first, max(1, most // 4)]
    able = [
        TuneCandidate("workers", {"workers": count, "persistent_workers": True}, found.data)
        for count in dict.fromkeys(counts)
        if count > now and count not in refused
    ][:1]
    if now and "prefetch_factor" not in kept and found.data > 2 * _LEAST_SHARE:
        able.append(TuneCandidate("workers", {"prefetch_factor": 6}, found.data / 3))
    if now and not found.persistent and 0 < found.in_pass < _SHORT_PASS:
        able.append(TuneCandidate("workers", {"persistent_workers": True}, found.data / 3))
    waits = "%.0f %% of a step waits for data" % (100 * found.data) if found.data < _LEAST_SHARE else None
    return Way("workers", able, None, waits)


def _enough(now: int, data: float) -> int:
    """Return the workers that give batches at 1.5 times the rate that the rest of the step takes; at least 2 × ``now``.

    While a step waits for ``now`` workers they give a batch in each step's time, and the rest of it is 1 - data.
    """
    wanted = max(2.0 * now, 1.5 * now / max(0.05, 1.0 - data))
    return next((count for count in (2, 4, 6, 8, 12, 16, 24) if count >= wanted), int(wanted))


def _pinning(found: TrialAnatomy) -> Way:
    if found.device != "cuda":
        return Way("pin_memory", [], "the script trains on the CPU")
    if found.workers is None:
        return Way("pin_memory", [], "no DataLoader gives the batches")
    changes = {"non_blocking": True} if found.pinned else {"pin_memory": True, "non_blocking": True}
    little = "%.1f %% of a step copies to the GPU" % (100 * found.copy) if found.copy < _LEAST_SHARE / 2 else None
    return Way("pin_memory", [TuneCandidate("pin_memory", changes, found.copy)], None, little)


def _arithmetic(found: TrialAnatomy, kept: Dict[str, Any]) -> Tuple[Way, ...]:
    """Return the ways to cheaper arithmetic, which pay where the step waits for the GPU."""
    # The GPU computes while the script waits for it; in the rest of the time, where it has not caught up.
    busy = found.sync + (found.computing - found.sync) * (1.0 - (found.gpu_waits or 0.0))
    little = "the GPU waits for the script: faster arithmetic would wait as well" if busy < _LEAST_SHARE else None
    if found.device != "cuda":
        little = "the script trains on the CPU"
    lower = found.autocast or (found.dtype if found.dtype in ("bfloat16", "float16") else None)
    taken = "the script computes in %s" % lower if lower else None
    if "precision" in kept:
        taken = "what bf16 leaves is little"
    flat = None if found.convolutions else "the model has no 2-D convolutions"
    return (
        Way("bf16", [TuneCandidate("bf16", {"precision": "bf16"}, 0.5 * busy)], taken, little),
        Way("tf32", [TuneCandidate("tf32", {"tf32": True}, 0.45 * busy)], taken, little),
        Way("channels_last", [TuneCandidate("channels_last", {"channels_last": True}, 0.25 * busy)], flat, little),
        Way(
            "cudnn_benchmark", [TuneCandidate("cudnn_benchmark", {"cudnn_benchmark": True}, 0.15 * busy)], None, little
        ),
    )


def _fused(found: TrialAnatomy) -> Way:
    if found.optimizer_name.startswith("none"):  # hook/torch_steps.py
        return Way("fused_optimizer", [], "the script has no optimizer")
    if found.optimizer_name not in _FUSED:
        return Way("fused_optimizer", [], "%s has no fused form" % (found.optimizer_name or "its optimizer"))
    if found.fused:
        return Way("fused_optimizer", [], "the script's optimizer is fused already")
    why = None
    if found.device != "cuda":
        why = "the script trains on the CPU"
    elif found.optimizer < _LEAST_SHARE:
        why = "%.0f %% of a step is the optimizer's" % (100 * found.optimizer)
    able = [TuneCandidate("fused_optimizer", {"fused_optimizer": True}, 0.6 * found.optimizer)]
    return Way("fused_optimizer", able, None, why)


def _compile(found: TrialAnatomy, kept: Dict[str, Any]) -> Way:
    if kept.get("compile") == "reduce-overhead":
        return Way("compile", [], "its fastest mode is kept")
    if "compile" not in kept and (found.compile_s or found.cuda_graph):
        return Way("compile", [], "the script compiles or captures its steps already")
    little = "%.0f %% of a step computes" % (100 * found.computing) if found.computing < 0.1 else None
    if found.device != "cuda":
        little = "the script trains on the CPU"
    waits = found.gpu_waits or 0.0
    # Fewer kernels are fewer launches, too, and a CUDA graph is one launch. What was compiled lies in caches: where
    # CUDA graphs gain nothing, compiling without them is tried in less time.
    plain = TuneCandidate("compile", {"compile": "default"}, (0.3 + 0.1 * waits) * found.computing, slow=True)
    graphs = TuneCandidate("compile", {"compile": "reduce-overhead"}, (0.3 + 0.3 * waits) * found.computing, slow=True)
    able = [] if "compile" in kept else [plain]
    if waits >= _LAUNCH_BOUND:
        able.append(graphs)
    return Way("compile", able, None, little)


def _buckets(found: TrialAnatomy) -> Way:
    if found.parallel != "DDP":
        return Way("buckets", [], "one process trains" if not found.parallel else "%s has none" % found.parallel)
    able = [
        TuneCandidate("buckets", {"gradient_as_bucket_view": True}, 0.05 + 0.1 * found.communication),
        TuneCandidate("buckets", {"bucket_cap_mb": 100}, 0.04 + 0.1 * found.communication),
    ]
    return Way("buckets", able)
