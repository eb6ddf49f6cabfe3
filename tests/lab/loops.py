"""Name of a loop → its script: structures × models × data × optimizers, drawn with a fixed seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from pieces import DATA, FOR_MODEL, MODELS, OPTIMIZERS, PREAMBLE
from structures import LOOPS, ONLY_MODELS, WITHOUT_DATA

#: Seconds that a step sleeps, so that hundreds of loops share few cores, and examples a batch.
PAUSE_S, SIZES = 0.006, (24, 32)
#: Draws of each structure; "plain" gets every model, kind of data and optimizer once.
DRAWS = 4
#: What a kind of data cannot be combined with: it has no end, it takes no size, its items are drawn anew.
_UNFIT = {
    "accumulation": ("endless",), "evaluated": ("dicts",), "sizes-grow": ("endless", "buckets", "drawn", "stream-batched"),
    "threads": ("endless", "workers", "tqdm"), "forked": ("endless", "workers", "tqdm"), "by-hand-accumulated": ("endless",),
    "in-a-thread": ("workers",),
}  # fmt: skip
_OWN_OPTIMIZER = ("lbfgs", "by-hand", "by-hand-data", "by-hand-accumulated", "autograd-grad", "func", "exception-in-step",
                  "optimizer-in-backward", "reptile")  # fmt: skip


def loops() -> dict[str, str]:
    """Every loop."""
    return dict(_loops())


def kept_aside(name: str) -> bool:
    """Return whether a loop is one of the tenth that is run at the end only."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 10 == 0


def _loops() -> Iterator[tuple[str, str]]:
    for model in MODELS:
        yield _loop("plain", model, "loader", "sgd")
    for data in DATA:
        yield _loop("plain", FOR_MODEL.get(data, ("mlp",))[0], data, "adam")
    for optimizer in OPTIMIZERS:
        yield _loop("plain", "convnet", "tensors", optimizer)
    for structure in LOOPS:
        if structure == "plain":
            continue
        if structure in WITHOUT_DATA:
            yield from (_loop(structure, "mlp", "loader", optimizer) for optimizer in ("adam", "sgd", "rmsprop"))
            continue
        draw, seen = random.Random(structure), set()
        while len(seen) < DRAWS:
            data = draw.choice([each for each in DATA if each not in _UNFIT.get(structure, ())])
            models = [each for each in FOR_MODEL.get(data, tuple(MODELS)) if each in ONLY_MODELS.get(structure, MODELS)]
            optimizer = "sgd" if structure in _OWN_OPTIMIZER else draw.choice(list(OPTIMIZERS))
            if structure in ("gan", "body-and-head", "ensemble") and optimizer == "lookahead":
                continue
            if models and data not in {each[1] for each in seen}:
                seen.add((draw.choice(models), data, optimizer))
        yield from (_loop(structure, *each) for each in sorted(seen))


def _loop(structure: str, model: str, data: str, optimizer: str) -> tuple[str, str]:
    name = f"{structure}/{model}/{data}/{optimizer}"
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:6], 16)
    preamble = PREAMBLE.replace("(SEED)", f"({seed})").replace("SIZE, PAUSE_S", f"{SIZES[seed % 2]}, {PAUSE_S}")
    ending = "" if "count.line()" in LOOPS[structure] else "count.line()\n"
    return name, preamble + MODELS[model] + DATA[data] + OPTIMIZERS[optimizer] + LOOPS[structure] + ending
