# expect: compute-bound
"""A U-Net for segmentation in bf16 with wide convolutions and a decent batch: the GPU convolves without a pause."""

import sys
import time

import torch
from torch import nn

cuda = torch.cuda.is_available()
dev = torch.device("cuda" if cuda else "cpu")
base, side, batch = (192, 128, 24) if cuda else (4, 32, 2)


def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(True), nn.Conv2d(o, o, 3, padding=1), nn.ReLU(True))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.mid = double(3, base), double(base, 2 * base), double(2 * base, 4 * base)
        self.u2, self.u1 = double(6 * base, 2 * base), double(3 * base, base)
        self.pool, self.up, self.out = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(base, 21, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        c = self.mid(self.pool(b))
        b = self.u2(torch.cat([b, self.up(c)], 1))
        return self.out(self.u1(torch.cat([a, self.up(b)], 1)))


net = UNet().to(dev, memory_format=torch.channels_last)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
img = torch.randn(batch, 3, side, side, device=dev).contiguous(memory_format=torch.channels_last)
mask = torch.randint(0, 21, (batch, side, side), device=dev)
stop = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8)
n = 0
while time.time() < stop:
    with torch.autocast(dev.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(net(img), mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    n += 1
    if n % 10 == 0:
        print(n, float(loss))
