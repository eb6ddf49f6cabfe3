# expect: python-bound
"""No DataLoader: get_batch() cuts windows out of a signal and filters them in numpy, inside the training loop."""

import sys
import time

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
signal = rng.normal(size=2_000_000).cumsum()
device = "cuda" if torch.cuda.is_available() else "cpu"


def get_batch(batch_size=64, length=1024):
    starts = rng.integers(0, len(signal) - length - 1, batch_size)
    rows = []
    for start in starts:
        window = signal[start : start + length]
        smooth = np.convolve(window, np.hanning(64) / 32, mode="same")
        rows.append((smooth - smooth.mean()) / (smooth.std() + 1e-8))
    x = np.stack(rows)
    y = signal[starts + length] > signal[starts + length - 1]
    return torch.tensor(x, dtype=torch.float32).to(device), torch.tensor(y, dtype=torch.float32).to(device)


model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    x, y = get_batch()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        print(f"step {step}: {loss.item():.4f}")
