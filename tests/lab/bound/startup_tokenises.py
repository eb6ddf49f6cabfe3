# expect: start-up
"""A text corpus is tokenised in Python before the first step, for thrice as long as training then takes."""

import random
import sys
import time
from collections import Counter

import torch
from torch import nn

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
device = "cuda" if torch.cuda.is_available() else "cpu"
random.seed(0)
letters = "etaoinshrdlu"
words = ["".join(random.choices(letters, k=random.randint(2, 9))) for _ in range(20_000)]
counts, ids, began = Counter(), [], time.time()
while time.time() - began < 1.2 * seconds:  # "for line in corpus"
    line = " ".join(random.choices(words, k=500)).lower().replace("u", "v")
    counts.update(line.split())
    ids.append([hash(word) % 20_000 for word in line.split()])
print(f"{len(ids)} lines, {len(counts)} different words")

tokens = torch.tensor(ids[:5000], device=device)
model = nn.Sequential(nn.Embedding(20_000, 128), nn.Linear(128, 20_000)).to(device)
optimizer = torch.optim.Adam(model.parameters())
began = time.time()
while time.time() - began < 0.4 * seconds:
    rows = tokens[torch.randint(0, len(tokens), (8,), device=device), :65]
    loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
