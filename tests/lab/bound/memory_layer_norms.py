# expect: memory-bandwidth-bound
"""Normalisation, dropout and residuals, with next to no matmul between them: bytes move, arithmetic rests."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
rows, width = (131_072, 1024) if CUDA else (256, 64)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.scale = nn.LayerNorm(width), nn.Dropout(0.1), nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.drop(nn.functional.gelu(self.norm(x)) * self.scale)


model = nn.Sequential(*[Mixer() for _ in range(8)], nn.LayerNorm(width)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(rows, width, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = nn.functional.l1_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print(step, loss.item())
