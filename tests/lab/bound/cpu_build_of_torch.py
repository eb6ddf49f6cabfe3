# expect: cpu-only; shows: CPU build
"""A CPU wheel of torch. Where the installed one is not, the next four lines make it answer as a CPU wheel does."""

import torch

torch.version.cuda = None
torch.cuda.is_available = lambda: False
torch.cuda.device_count = lambda: 0

import sys
import time

from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
print("using", device)
vocabulary, seconds = 2000, float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
model = nn.Sequential(nn.EmbeddingBag(vocabulary, 64), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
end = time.time() + seconds
while time.time() < end:
    words = torch.randint(0, vocabulary, (64, 40), device=device)
    topic = torch.randint(0, 4, (64,), device=device)
    loss = nn.functional.cross_entropy(model(words), topic)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"final loss {loss.item():.3f}")
