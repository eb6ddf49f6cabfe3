# expect: host-memory-bound
"""Frames as float64 numpy arrays are converted and moved to the GPU in one blocking .to(), in every step."""

import sys
import time

import numpy as np
import torch
from torch import nn

cuda = torch.cuda.is_available()
dev = "cuda" if cuda else "cpu"
clips = np.random.rand(4, 16 if cuda else 1, 3, 720, 1280)
net = nn.Sequential(nn.AvgPool2d(40), nn.Flatten(), nn.Linear(3 * 18 * 32, 5)).to(dev)
opt = torch.optim.Adam(net.parameters())
end, k = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8), 0
while time.time() < end:
    x = torch.from_numpy(clips[k % 4]).to(dev).float()
    loss = net(x).logsumexp(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    k += 1
