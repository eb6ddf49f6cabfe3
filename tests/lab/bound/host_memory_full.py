# expect: host-memory-bound; needs: container; flags: --memory 3GB
"""A file larger than the container's memory is read over and over: the kernel drops pages as fast as they come."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
with tempfile.TemporaryDirectory(dir=".") as folder:
    path = Path(folder) / "all.bin"
    with path.open("wb") as file:
        for _ in range(48):
            file.write(np.zeros(2**26, np.uint8).tobytes())
    rows = np.memmap(path, np.uint8, "r").reshape(-1, 2**16)
    model = nn.Linear(2**16, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rng, kept = np.random.default_rng(0), [np.ones(2**26, np.uint8) for _ in range(24)]
    end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
    while time.time() < end:
        pick = np.sort(rng.integers(0, len(rows), 256))
        batch = torch.from_numpy(rows[pick]).to(device).float()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(kept), loss.item())
