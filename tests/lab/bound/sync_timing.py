# expect: synchronisation-bound
"""Somebody measures every layer with torch.cuda.synchronize() around it, and has left it in. The last four train."""

import sys
import time
from collections import defaultdict

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
spent = defaultdict(float)


class Timed(nn.Module):
    def __init__(self, name, layer):
        super().__init__()
        self.name, self.layer = name, layer

    def forward(self, x):
        if CUDA:
            torch.cuda.synchronize()
        began = time.perf_counter()
        out = self.layer(x)
        if CUDA:
            torch.cuda.synchronize()
        spent[self.name] += time.perf_counter() - began
        return out


channels = 96 if CUDA else 4
model = nn.Sequential(*[Timed(f"conv{i}", nn.Conv2d(channels, channels, 3, padding=1)) for i in range(12)]).to(device)
model[:8].requires_grad_(False)
optimizer = torch.optim.SGD(model[8:].parameters(), lr=1e-4)
x = torch.randn(44 if CUDA else 8, channels, 32, 32, device=device)
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(dict(spent))
