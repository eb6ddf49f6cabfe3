# expect: compute-bound
"""A plain stack of wide 3x3 convolutions, channels_last in bf16: arithmetic is what takes the time."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
channels, side, batch = (768, 32, 128) if CUDA else (16, 8, 4)
layers = [nn.Conv2d(3, channels, 3, padding=1)]
for _ in range(8):
    layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.ReLU(inplace=True)]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.backends.cudnn.benchmark = True
images = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (batch,), device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print(step, loss.item())
