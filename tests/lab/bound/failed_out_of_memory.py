# expect: failed-early; shows: memory; needs: gpu
"""Attention written out by hand over a million tokens: the table of scores wants four terabytes in the first step."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(0, 1)
        return torch.softmax(scores, 1) @ self.value(x)


model = Attention().to(device)
optimizer = torch.optim.AdamW(model.parameters())
document = torch.randn(1_000_000, 64, device=device)
for step in range(1000):
    loss = model(document).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
