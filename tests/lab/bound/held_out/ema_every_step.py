# expect: launch-bound
"""An EMA of the weights kept by hand: two small kernels for each of hundreds of tensors after every step."""

import copy
import sys
import time

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.BatchNorm1d(96), nn.SiLU()) for _ in range(60)]).to(dev)
ema = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8)
while time.time() < end:
    x = torch.randn(128, 96, device=dev)
    loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(ema.state_dict().values(), net.state_dict().values()):
            if slow.dtype.is_floating_point:
                slow.mul_(0.999).add_(fast, alpha=0.001)
