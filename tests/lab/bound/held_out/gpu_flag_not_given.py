# expect: cpu-only; shows: --gpu
"""An old command line: training uses the GPU where --gpu is given, which nobody did."""

import argparse
import time

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("budget", nargs="?", type=float, default=8.0)
ap.add_argument("--gpu", action="store_true", help="use the GPU")
opt = ap.parse_args()
net = nn.GRU(16, 32, batch_first=True)
out = nn.Linear(32, 1)
if opt.gpu:
    net.cuda()
    out.cuda()
sgd = torch.optim.SGD(list(net.parameters()) + list(out.parameters()), lr=1e-2)
t0 = time.time()
while time.time() - t0 < opt.budget:
    x = torch.randn(16, 30, 16)
    y = x.sum((1, 2), keepdim=False)[:, None]
    if opt.gpu:
        x, y = x.cuda(), y.cuda()
    loss = ((out(net(x)[0][:, -1]) - y) ** 2).mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
