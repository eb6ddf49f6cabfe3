"""What a trial's steps were made of, as far as it decides what to try next: shares of the step's time."""

from typing import Any, Dict, NamedTuple, Optional

from seatrial.agent.tune.trial import Trial

#: Regions that the hook's windows tell apart from the others; see diagnosis/anatomy.py.
_REFINED = ("copy", "other", "backward", "optimizer", "sync", "communication")


class Anatomy(NamedTuple):
    """Shares of the step's time, 0 to 1, and what is known of the training.

    gpu_waits: share of marks at which the GPU had nothing left to do; None where nobody looked.
    workers: of the loader, None where no DataLoader gives the batches. persistent: whether they stay between passes.
    fused: whether the optimizer is as the script has it. convolutions: whether there are weights of 2-D ones.
    in_pass: batches in a pass, 0 where that is not known.
    """

    data: float
    copy: float
    optimizer: float
    sync: float
    communication: float
    computing: float
    gpu_waits: Optional[float]
    workers: Optional[int]
    persistent: bool
    in_pass: int
    pinned: bool
    device: str
    dtype: str
    autocast: Optional[str]
    optimizer_name: str
    fused: bool
    convolutions: bool
    parallel: Optional[str]
    compile_s: float
    cuda_graph: bool


def of(trial: Trial) -> Anatomy:
    """A number that was not told is 0: nothing that rests on it is tried."""
    regions = _refined(trial)
    seconds = sum(regions.values()) or 1.0
    shares = {name: spent / seconds for name, spent in regions.items()}
    window = _dict(trial.anatomy, "window")
    caught = window.get("caught_up")
    loader = trial.facts.get("loader")
    loader = loader if isinstance(loader, dict) else None
    return Anatomy(
        data=shares.get("data", 0.0),
        copy=shares.get("copy", 0.0),
        optimizer=shares.get("optimizer", 0.0),
        sync=shares.get("sync", 0.0),
        communication=shares.get("communication", 0.0),
        computing=sum(shares.get(name, 0.0) for name in ("other", "backward", "sync", "optimizer")),
        gpu_waits=caught[0] / caught[1] if isinstance(caught, list) and len(caught) == 2 and caught[1] else None,
        workers=int(_number(loader.get("workers"))) if loader is not None else None,
        persistent=bool(loader and loader.get("persistent_workers")),
        in_pass=int(_number((loader or {}).get("length"))),
        pinned=bool(loader and loader.get("pin_memory")),
        device=str(trial.facts.get("device", "")),
        dtype=str(trial.facts.get("parameter_dtype", "")),
        autocast=trial.facts.get("autocast"),
        optimizer_name=str(trial.facts.get("optimizer", "")),
        fused=bool(trial.facts.get("fused")),
        convolutions=bool(trial.facts.get("convolutions")),
        parallel=trial.facts.get("parallel"),
        compile_s=_number(trial.anatomy.get("compile_s")),
        cuda_graph=bool(trial.facts.get("cuda_graph")),
    )


def _refined(trial: Trial) -> Dict[str, float]:
    """The measured steps' regions without evaluation and saving, refined in the windows' proportions."""
    told = _dict(trial.report or {}, "regions")
    whole = {name: _number(spent) for name, spent in told.items() if name not in ("evaluation", "checkpoint")}
    window = _dict(_dict(trial.anatomy, "window"), "regions")
    fine = {name: _number(window.get(name)) for name in _REFINED}
    fine_s, coarse_s = sum(fine.values()), sum(whole.get(name, 0.0) for name in _REFINED)
    if not fine_s:
        return whole
    return {**whole, **{name: spent * coarse_s / fine_s for name, spent in fine.items()}}


def _dict(values: Dict[str, Any], key: str) -> Dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
