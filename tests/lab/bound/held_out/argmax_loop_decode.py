# expect: launch-bound
"""Greedy decoding, no training: a small GPT makes one token after another, each from a forward pass of its own."""

import sys
import time

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Tiny(nn.Module):
    def __init__(self, d=256, n=8, vocab=5000):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        layer = nn.TransformerEncoderLayer(d, 8, 4 * d, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, n, enable_nested_tensor=False)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids))[:, -1])


net, made = Tiny().to(dev).eval(), 0
until = time.perf_counter() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8)
with torch.no_grad():
    while time.perf_counter() < until:
        ids = torch.randint(0, 5000, (1, 8), device=dev)
        for _ in range(40):
            ids = torch.cat([ids, net(ids).argmax(-1, keepdim=True)], dim=1)
        made += 40
print(made, "tokens")
