# expect: python-bound
"""DQN whose replay buffer is a deque of tuples: a batch of 512 is sampled and stacked element by element in Python."""

import random
import sys
import time
from collections import deque

import numpy as np
import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
buffer = deque(maxlen=20_000)
for _ in range(20_000):
    buffer.append(
        (
            [random.random() for _ in range(84)],
            random.randrange(4),
            random.random(),
            [random.random() for _ in range(84)],
        )
    )
q = nn.Sequential(nn.Linear(84, 128), nn.ReLU(), nn.Linear(128, 4)).to(dev)
target = nn.Sequential(nn.Linear(84, 128), nn.ReLU(), nn.Linear(128, 4)).to(dev)
target.load_state_dict(q.state_dict())
target.eval()
opt = torch.optim.Adam(q.parameters(), 1e-4)
start = time.time()
while time.time() - start < (float(sys.argv[1]) if len(sys.argv) > 1 else 8):
    batch = random.sample(buffer, 2048)
    s, a, r, s2 = (np.array([row[k] for row in batch], dtype=np.float32) for k in range(4))
    s, r, s2 = (torch.from_numpy(v).to(dev) for v in (s, r, s2))
    chosen = q(s).gather(1, torch.from_numpy(a).long().to(dev)[:, None]).squeeze(1)
    with torch.no_grad():
        goal = r + 0.99 * target(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(chosen, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
