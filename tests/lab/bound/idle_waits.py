# expect: idle
"""It holds a GPU and waits for a file that another job should write: a model is loaded, and nothing computed."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4096, 4096).to(device).eval()
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while not Path("features.ready").exists() and time.time() < end:
    time.sleep(0.5)
with torch.no_grad():
    print(model(torch.zeros(1, 4096, device=device)).sum().item())
