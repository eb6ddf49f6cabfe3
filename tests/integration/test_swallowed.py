"""Scripts that catch an exception, print it and end with 0: which of them are in doubt. Run as they are."""

from __future__ import annotations

import pytest

TRAIN = """
import logging, sys, time, traceback
from pathlib import Path

def train():
    for epoch in range(3):
        print(f"epoch {epoch} loss {1 / (epoch + 1):.3f}")

def save(name="model.pth"):
    Path(name).write_bytes(b"weights")

def say(words):
    time.sleep(0.3)  # so that nobody reads it together with what was printed before
    print(words)

def plot():
    raise ImportError("No module named 'matplotlib'")
"""

WENT_ON = {
    "a plot that fails behind the training": """
train()
save()
try:
    plot()
except Exception:
    traceback.print_exc()
say("saved to model.pth")
""",
    "a plot that fails before the model is saved": """
train()
try:
    plot()
except Exception:
    logging.exception("no plot of this run")
save()
say("done")
""",
    "an upload that is given up": """
train()
save()
try:
    raise ConnectionError("api.wandb.ai")
except ConnectionError:
    traceback.print_exc()
    say("not uploaded; the run is kept offline")
""",
    "an evaluation on standard output, and the model in a folder": """
Path("out").mkdir()
train()
try:
    plot()
except Exception as error:
    sys.excepthook(*sys.exc_info())
save("out/best.safetensors")
say("test accuracy 0.981, test error 0.019")
""",
}

SWALLOWED = {
    "the training": """
try:
    train()
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
except Exception:
    traceback.print_exc()
""",
    "the training, with a checkpoint before": """
try:
    train()
    save()
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
except Exception:
    traceback.print_exc()
""",
    "the training, which says so": """
try:
    train()
    save()
    raise ValueError("loss is nan")
except Exception:
    traceback.print_exc()
    say("Training failed!")
""",
    "the training, and goes on without a model": """
try:
    raise FileNotFoundError("data/train.csv")
except Exception:
    traceback.print_exc()
say("done")
""",
}


@pytest.mark.parametrize("name", [*WENT_ON, *SWALLOWED])
def test_an_exception_in_the_last_seconds(local_project, name: str) -> None:
    local_project.write("train.py", TRAIN + {**WENT_ON, **SWALLOWED}[name])
    local_project.run("train.py", "--gpus", "none")
    receipt = local_project.receipt()
    found = [finding["id"] for finding in receipt["findings"]]
    assert ("exception-swallowed" in found) == (name in SWALLOWED), receipt["exit_cause"]
