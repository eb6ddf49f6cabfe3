# expect: cpu-only
"""The second GPU is wanted, there is one: the error is caught, and training goes on where nobody asked for it."""

import sys
import time

import torch
from torch import nn

try:
    device = torch.device("cuda:7")
    torch.zeros(1, device=device)
except (RuntimeError, AssertionError) as error:
    print("no GPU for us:", str(error).splitlines()[0])
    device = torch.device("cpu")

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images, labels = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
until = time.time() + seconds
while time.time() < until:
    pick = torch.randint(0, 512, (32,))
    loss = nn.functional.cross_entropy(model(images[pick].to(device)), labels[pick].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
