# expect: latency-bound
"""One small LSTM over a long sequence: cuDNN runs it step by step, each of which waits for the one before."""

import sys
import time

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
lstm, head = nn.LSTM(16, 64).to(device), nn.Linear(64, 1).to(device)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-3)
length = 4000 if device.type == "cuda" else 100
series = torch.randn(length, 8, 16, device=device)
target = series.sum(-1, keepdim=True)
end, n = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    output, _ = lstm(series)
    loss = (head(output) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    n += 1
    if n % 20 == 0:
        print(n, loss.item())
