# expect: memory-bandwidth-bound
"""A hand-written activation of eight operations over large tensors: each reads and writes all of it once more."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
count = 2**27 if CUDA else 2**14


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.tanh(x * self.a + self.b) * torch.sigmoid(x) + 0.1 * x.clamp(-1, 1) * x.abs()


model = nn.Sequential(Wave(), Wave(), Wave()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
signal = torch.randn(count, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = (model(signal) - signal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, loss.item())
