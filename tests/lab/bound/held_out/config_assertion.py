# expect: failed-early; shows: AssertionError
"""A config that does not fit itself: an assertion after the model is on the GPU, before the first batch."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    width: int = 512
    heads: int = 12
    steps: int = 10_000


cfg = Config()
model = nn.Embedding(1000, cfg.width).to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
attention = nn.MultiheadAttention(cfg.width, cfg.heads)
for step in range(cfg.steps):
    loss = model(torch.randint(0, 1000, (8,), device=model.weight.device)).sum()
    loss.backward()
    optimizer.step()
