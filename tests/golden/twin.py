"""Train with one tree in this process and print digests: ``PYTHONPATH=TREE/src:tests python tests/golden/twin.py OUT``.

The test runs it with the source of the reference and with this tree on one machine: losses, weights, optimizer states
and random numbers have to be equal to the bit. Nothing is stored, so nothing depends on the machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from own_models import OWN
from seatrial.train import Step, batches, fit

BATCH, EPOCHS = 8, 3


def digest(value: Any) -> str:
    """Return a digest of tensors and plain values in any nesting."""
    state = hashlib.sha256()

    def feed(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            state.update(str((part.dtype, tuple(part.shape))).encode())
            state.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            for key in sorted(part, key=str):
                state.update(str(key).encode())
                feed(part[key])
        elif isinstance(part, list | tuple):
            for each in part:
                feed(each)
        elif isinstance(part, float):
            state.update(struct.pack("d", part))
        else:
            state.update(pickle.dumps(part) if isinstance(part, bytes) else repr(part).encode())

    feed(value)
    return state.hexdigest()[:16]


def own_model(name: str, folder: Path, **changes: Any) -> dict[str, str]:
    """Train one of the own models; return digests of its losses, weights and optimizer state."""
    network, loss, dataset = OWN[name]
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    if changes.pop("cosine", False):
        changes["schedule"] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 27)
    fitting = changes.pop("fitting", {})
    outcome = fit(Step(model, loss, optimizer, batches(dataset(), BATCH), epochs=EPOCHS, **changes), **fitting)
    return {
        "losses": digest(outcome.losses),
        "weights": digest(model.state_dict()),
        "state": digest(optimizer.state_dict()["state"]),
        "random": digest(torch.get_rng_state()),
    }


def recipe(module: str, arguments: list[str], folder: Path) -> dict[str, str]:
    """Train a recipe by its command line's function; return digests of each file of weights."""
    from importlib import import_module

    torch.manual_seed(0)
    words = [*arguments, "--seed", "1", "--models", str(folder), "--checkpoints", str(folder / "checkpoints")]
    assert import_module(f"seatrial.recipes.{module}").main(words) == 0
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found[str(path.relative_to(folder))] = digest(load_file(path))
        elif path.suffix in (".pt", ".pth"):
            kept = torch.load(path, weights_only=False)
            found[str(path.relative_to(folder))] = digest(
                {key: kept[key] for key in ("model", "optimizer") if key in kept} or kept
            )
    return found


def scenarios(data: Path, out: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each scenario's name and digests."""
    for name in OWN:
        yield f"{name}, plain", own_model(name, out)
    yield "tied, accumulation and clipping", own_model("tied", out, accumulation=2, clip_norm=0.5)
    yield "vae, cosine", own_model("vae", out, cosine=True)
    yield "resnet, moving average", own_model("resnet", out, average_decay=0.9)
    kept = out / "resumed"
    own_model("unet", out, fitting={"checkpoints": kept, "epochs": 1, "every_steps": 4})
    yield "unet, resumed", own_model("unet", out, fitting={"checkpoints": kept, "resume": True})
    for name, arguments in (
        ("digits", ["--epochs", "1"]),
        ("mnist_deep", ["--epochs", "1", "--data", str(data / "bars"), "--batch", "32"]),
        (
            "spam",
            ["--epochs", "1", "--data", str(data / "messages"), "--from-scratch", "--shape", "small", "--batch", "16"],
        ),
    ):
        if name != "spam" or importlib.util.find_spec("transformers"):
            yield name, recipe(name, arguments, out / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir()
    found = dict(scenarios(data, out))
    (out / "digests.json").write_text(json.dumps(found, indent=1))
