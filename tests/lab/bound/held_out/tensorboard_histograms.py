# expect: synchronisation-bound
"""Histograms of every weight and gradient go to the host after every step, "for the logger"."""

import sys
import time

import torch
from torch import nn

cuda = torch.cuda.is_available()
dev = "cuda" if cuda else "cpu"
d = 1536 if cuda else 32


class Logger:
    def __init__(self):
        self.last = {}

    def add_histogram(self, tag, values):
        self.last[tag] = torch.histc(values.detach().float(), 64).cpu().tolist()


net = nn.Sequential(*[nn.Sequential(nn.Linear(d, d), nn.ReLU()) for _ in range(6)]).to(dev)
opt, log = torch.optim.SGD(net.parameters(), 1e-3), Logger()
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8)
while time.time() < end:
    loss = net(torch.randn(1024, d, device=dev)).square().mean()
    opt.zero_grad()
    loss.backward()
    for name, p in net.named_parameters():
        log.add_histogram("weight/" + name, p)
        log.add_histogram("grad/" + name, p.grad)
    opt.step()
