# expect: synchronisation-bound
"""A detector's loss: positives are picked by boolean masks and nonzero(), whose sizes the host must wait for."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
WIDTH, ANCHORS = (1536, 16_384) if CUDA else (32, 512)
head = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5)).to(
    device
)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)


def detection_loss(out, boxes, labels):
    total = out.new_zeros(())
    for c in range(6):  # classes
        positive = labels == c
        total = total + (out[positive, :4] - boxes[positive]).abs().mean()
        hard = torch.nonzero(out[:, 4].detach() > 0.1 * c).squeeze(1)
        total = total + out[hard, 4].pow(2).sum() / max(1, len(hard))
    return total


features = torch.randn(ANCHORS, 256, device=device)
boxes = torch.rand(ANCHORS, 4, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    labels = torch.randint(0, 6, (ANCHORS,), device=device)
    loss = detection_loss(head(features), boxes, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(step, float(loss))
