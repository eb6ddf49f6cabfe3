# expect: compiling; flags: --env TORCHINDUCTOR_FORCE_DISABLE_CACHES=1
"""max-autotune for a network that then trains for two seconds: choosing kernels takes the run."""

import sys
import time

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
parts = [
    nn.Sequential(nn.Linear(64 + 8 * i, 64 + 8 * (i + 1)), nn.GELU(), nn.LayerNorm(64 + 8 * (i + 1))) for i in range(10)
]
net = torch.compile(nn.Sequential(*parts, nn.Linear(144, 2)).to(dev), mode="max-autotune-no-cudagraphs")
opt = torch.optim.SGD(net.parameters(), 0.1)
stop = None
while stop is None or time.time() < stop:
    loss = net(torch.randn(256, 64, device=dev)).exp().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if stop is None:
        stop = time.time() + 0.25 * (float(sys.argv[1]) if len(sys.argv) > 1 else 8)
