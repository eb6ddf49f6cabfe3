"""The lines of docs/training.md for a model of one's own, on the CPU: started by torchrun, or alone. OUT, then options.

OUT/rank-N.pt gets the losses and the weights.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from seatrial.train import Step, Test, batches, cosine, fit

out, batch, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else False


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.last(x + self.first(self.norm(x)).relu())


def loss(model, x, labels):
    return cross_entropy(model(x), labels)


def score(model, x, labels):
    logits = model(x)
    return {"test_loss": cross_entropy(logits, labels, reduction="none"), "accuracy": logits.argmax(1) == labels}


torch.manual_seed(0)
data = TensorDataset(torch.randn(131, 12), torch.arange(131) % 3)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = Step(model, loss, optimizer, batches(data, batch), schedule=cosine(), epochs=3, clip_norm=1.0, average_decay=0.9)
outcome = fit(step, test=Test(data, score), checkpoints=None if resume else out / "checkpoints", resume=resume, keep=9)
rank = os.environ.get("RANK", "0")
averaged = step.average.model.state_dict()
torch.save(
    {"losses": outcome.losses, "model": model.state_dict(), "average": averaged, "metrics": outcome.metrics},
    out / f"rank-{rank}.pt",
)
