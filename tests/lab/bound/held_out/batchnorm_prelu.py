# expect: memory-bandwidth-bound
"""Big feature maps through BatchNorm and PReLU in fp32, and nothing else: every layer reads and writes all of them."""

import sys
import time

import torch
from torch import nn

cuda = torch.cuda.is_available()
dev = "cuda" if cuda else "cpu"
n, c, s = (32, 256, 128) if cuda else (1, 4, 16)
net = nn.Sequential(
    *[nn.Sequential(nn.BatchNorm2d(c), nn.PReLU(c), nn.Hardtanh(), nn.BatchNorm2d(c)) for _ in range(4)]
)
net = net.to(dev).train()
opt = torch.optim.SGD(net.parameters(), 1e-2)
x = torch.randn(n, c, s, s, device=dev)
end, i = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8), 0
while time.time() < end:
    loss = net(x).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    i += 1
    if i % 20 == 0:
        print(i, loss.item())
