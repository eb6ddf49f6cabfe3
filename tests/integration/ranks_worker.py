"""One rank of a small training, started by torchrun from test_train_ranks.py: `ranks_worker.py WHAT OUT`.

WHAT: plain, forward or backward (out of memory there on rank 1, once the micro-batch is above 4), hang, die, die-once,
wait (in step 8 until OUT/go is there), long-test (rank 0 tests for three times the watchdog's limit, rank 1
waits for it), long-step (so does a step of rank 1), resume, elastic (120 slow epochs that go on after a
restart), apart (goes on from a folder of each rank's own).
Writes losses and weights as OUT/rank-N.pt, and the exit code as OUT/exit-N.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from seatrial.train import options
from seatrial.train.data.images import ImageSet, ResidentImages, TestImages
from seatrial.train.distributed import ranks
from seatrial.train.errors import EXIT_TERMINATED
from seatrial.train.evaluation import evaluate
from seatrial.train.loop import Settings, fit
from seatrial.train.optim.optimizer import adam
from seatrial.train.precision import Precision
from seatrial.train.saving.examples import Normalisation
from seatrial.train.saving.rng import seed_all
from seatrial.train.step import Step
from seatrial.train.trackers import Trackers

GLOBAL_BATCH, EXAMPLES, EPOCHS = 32, 131, 3  # 131 = 4 × 32 + 3: the last batch is uneven over two ranks

#: Seconds after which ranks that stand still are ended.
HANG_S = 4.0


def compute(seconds: float) -> None:
    """Keep a core busy for so long."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        torch.ones(64, 64) @ torch.ones(64, 64)


class FailsInBackward(torch.autograd.Function):
    """The identity, whose backward pass runs out of memory."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory (made by the test)")


def main(argv):
    what, out = argv[0], Path(argv[1])
    generator = torch.Generator().manual_seed(5)
    labels_N = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    images_NCHW = torch.randint(0, 100, (EXAMPLES, 1, 6, 6), generator=generator)
    images_NCHW[torch.arange(EXAMPLES), 0, labels_N * 2] += 120
    data = ImageSet(images_NCHW.to(torch.uint8), labels_N, 3)
    with ranks(timeout_s=300) as group:
        seed_all(group.rank)  # different on purpose: fit gives every rank the first one's weights
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
        steps = 0

        def loss(model, images, labels):
            nonlocal steps
            steps += 1
            logits = model(images)
            if group.rank == 1 and len(labels) > 4 and what == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory (made by the test)")
            if group.rank == 1 and len(labels) > 4 and what == "backward":
                logits = FailsInBackward.apply(logits)
            first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
            if group.rank == 1 and steps == 8 and (what == "die" or (what == "die-once" and first_life)):
                os.kill(os.getpid(), signal.SIGKILL)
            if group.rank == 1 and steps == 8 and what == "hang":
                time.sleep(600)
            if group.rank == 1 and steps == 8 and what == "long-step":
                compute(3 * HANG_S)
            if steps == 8 and what == "wait":
                (out / f"waits-{group.rank}").write_text(str(os.getpid()))
                while not (out / "go").exists():
                    time.sleep(0.05)
            if what == "elastic":
                time.sleep(0.02)
            return F.cross_entropy(logits, labels)

        normalise = Normalisation.of(data.images_NCHW)
        source = ResidentImages(data, normalise, GLOBAL_BATCH // group.world, group, 0)
        accumulation = 4 if what == "small" else 1
        precision = Precision("fp32", group.device)
        step = Step(model, loss, adam(model, 1e-2), source, ranks=group, precision=precision, accumulation=accumulation)
        tests = TestImages(data, normalise, group, 10)
        folder = "checkpoints" if what != "apart" or group.first else "elsewhere"
        keep = out / folder if what in ("die-once", "wait", "elastic", "apart") else None
        settings = Settings(
            120 if what == "elastic" else EPOCHS,
            checkpoints=keep,
            resume=keep if what == "apart" else out / "checkpoints" if what == "resume" else None,
            hang_s=HANG_S if what in ("hang", "long-test", "long-step") else None,
        )
        if group.first:
            print(f"{group.world} rank(s)", flush=True)

        def test():
            if group.first and what == "long-test":
                compute(3 * HANG_S)
            return evaluate(model, tests, group, precision)

        outcome = fit(step, test, Trackers([]), settings)
        state = {"losses": outcome.losses, "model": model.state_dict(), "metrics": outcome.metrics}
        torch.save({**state, "micro": step.micro_batch.rows}, out / f"rank-{group.rank}.pt")
    return EXIT_TERMINATED if outcome.terminated else 0


if __name__ == "__main__":
    try:
        options.run(main)
    except SystemExit as ended:
        (Path(sys.argv[2]) / f"exit-{os.environ['RANK']}").write_text(str(ended.code))
        raise
