# expect: host-memory-bound
"""Feature extraction, no training: every layer's output goes back to the host as float32, which takes longer than it."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
backbone = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 1)).to(device).eval()
images = torch.rand(64 if CUDA else 1, 3, 224, 224, device=device)
kept, end, count = None, time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
with torch.inference_mode():
    while time.time() < end:
        features = backbone(images)
        kept = features.cpu().numpy()  # "save for later"
        count += len(images)
print(count, "images", kept.mean())
