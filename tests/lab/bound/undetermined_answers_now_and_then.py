# expect: undetermined
"""A service that answers a question now and then: the GPU holds its memory, computes for a moment, and rests."""

import sys
import time

import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda().eval()
held = torch.empty(2**28, device="cuda")
until_s = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 20)
answers = 0
while time.monotonic() < until_s:
    time.sleep(0.05)  # until the next question
    with torch.no_grad():
        for _ in range(20):
            answers += int(net(torch.randn(256, 1024, device="cuda")).argmax())
print("answers", answers)
