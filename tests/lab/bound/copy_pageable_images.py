# expect: host-memory-bound
"""Large batches lie ready in ordinary memory and are copied one after another, each blocking, into an idle GPU."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
batches = [torch.rand(256 if CUDA else 8, 3, 512, 512) for _ in range(3)]
labels = torch.randint(0, 10, (len(batches[0]),))
model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(768, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    images = batches[step % 3].to(device)
    target = labels.to(device)
    loss = nn.functional.cross_entropy(model(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(f"{step} steps, loss {loss.item():.3f}")
