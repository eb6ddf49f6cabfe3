# expect: compiling; flags: --env TORCHINDUCTOR_FORCE_DISABLE_CACHES=1
"""A deep network of different widths under torch.compile, and three seconds of steps: compiling takes the rest."""

import sys
import time

import torch
from torch import nn

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width, kind):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.kind = kind

    def forward(self, x):
        h = self.up(self.norm(x))
        h = (torch.sin(h) * h, torch.tanh(h), torch.relu(h) ** 2, torch.sigmoid(h) * h)[self.kind % 4]
        return x + self.down(h) * (1 + 0.1 * self.kind)


depth = 24 if device == "cuda" else 16
model = torch.compile(nn.Sequential(*[Block(64, kind) for kind in range(depth)], nn.Linear(64, 10)).to(device))
optimizer = torch.optim.AdamW(model.parameters())
step, end = 0, None
while end is None or time.time() < end:
    x, y = torch.randn(64, 64, device=device), torch.randint(0, 10, (64,), device=device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end = end or time.time() + 0.4 * seconds  # the first step has compiled it
    step += 1
print(step, loss.item())
