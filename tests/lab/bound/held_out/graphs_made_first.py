# expect: start-up
"""Thousands of graphs are made before training, node by node, for a run of two seconds of steps."""

import random
import sys
import time

import torch
from torch import nn

dev = "cuda" if torch.cuda.is_available() else "cpu"
budget = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
graphs, t = [], time.time()
while time.time() - t < 2 * budget:
    nodes = random.randint(20, 60)
    edges = [(i, j) for i in range(nodes) for j in range(i) if random.random() < 0.1]
    adjacency = [[0.0] * 64 for _ in range(64)]
    for i, j in edges:
        adjacency[i][j] = adjacency[j][i] = 1.0
    graphs.append(adjacency)
A = torch.tensor(graphs[:512]).to(dev)
w1, w2 = nn.Linear(64, 32).to(dev), nn.Linear(32, 1).to(dev)
opt = torch.optim.Adam([*w1.parameters(), *w2.parameters()])
t = time.time()
while time.time() - t < 0.3 * budget:
    h = torch.relu(A @ w1(A))
    loss = (w2(h).mean((1, 2)) - A.mean((1, 2))).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(len(graphs), "graphs")
