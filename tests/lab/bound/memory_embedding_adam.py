# expect: memory-bandwidth-bound
"""A recommender's embedding of gigabytes under dense Adam: a step reads and writes all of it for a few thousand rows."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
ITEMS, WIDTH = (12_000_000, 128) if CUDA else (20_000, 16)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, device=device)
        self.users = nn.Embedding(10_000, WIDTH, device=device)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


model = TwoTowers()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    user = torch.randint(0, 10_000, (4096,), device=device)
    item = torch.randint(0, ITEMS, (4096,), device=device)
    bought = torch.randint(0, 2, (4096,), device=device).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), bought)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, loss.item())
