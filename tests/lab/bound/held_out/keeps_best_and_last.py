# expect: checkpoint-bound
"""state_dict to disk as best.pt and last.pt after each handful of steps, with an fsync, "because the node is unreliable"."""

import os
import sys
import tempfile
import time

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, batch_first=True), 6).to(dev)
opt = torch.optim.Adam(net.parameters(), 1e-4)
where, t0, step = tempfile.mkdtemp(), time.time(), 0


def save(name):
    with open(os.path.join(where, name), "wb") as f:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, f)
        f.flush()
        os.fsync(f.fileno())


while time.time() - t0 < (float(sys.argv[1]) if len(sys.argv) > 1 else 8):
    loss = net(torch.randn(8, 32, 512, device=dev)).var()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 5 == 0:
        save("last.pt")
        save("best.pt")
