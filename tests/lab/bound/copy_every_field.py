# expect: host-memory-bound
"""A batch with a hundred columns, each moved by its own blocking .to(): the copies' overheads are most of the step."""

import sys
import time

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COLUMNS, ROWS = 120, 16_384


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch):
        return self.net(torch.stack([batch[name] for name in sorted(batch)], dim=1))


def columns():
    return {f"feature_{i:03}": torch.rand(ROWS) for i in range(COLUMNS)}


model = Recommender().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
ready, clicks = [columns() for _ in range(4)], torch.randint(0, 2, (ROWS,), device=device).float()
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    batch = {name: column.to(device) for name, column in ready[step % 4].items()}
    loss = nn.functional.binary_cross_entropy_with_logits(model(batch).squeeze(1), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(f"{step} steps")
