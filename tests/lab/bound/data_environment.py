# expect: python-bound
"""Policy gradient on a game written in Python: the game is the data, and the GPU waits while it is played."""

import math
import random
import sys
import time

import torch
from torch import nn


class Lander:
    """Sixty bodies that pull on a ship: a step of the world is some thousand operations of Python."""

    def reset(self):
        self.bodies = [(random.uniform(-9, 9), random.uniform(-9, 9)) for _ in range(1500)]
        self.x, self.y, self.t = 0.0, 5.0, 0
        return [self.x, self.y]

    def step(self, action):
        pull_x = pull_y = 0.0
        for bx, by in self.bodies:
            distance = math.sqrt((bx - self.x) ** 2 + (by - self.y) ** 2) + 1.0
            pull_x += (bx - self.x) / distance**3
            pull_y += (by - self.y) / distance**3
        self.x += 0.01 * (pull_x + action - 0.5)
        self.y += 0.01 * pull_y
        self.t += 1
        return [self.x, self.y], -abs(self.x), self.t >= 20


device = "cuda" if torch.cuda.is_available() else "cpu"
policy = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
world, end = Lander(), time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    states, actions, rewards, state, done = [], [], [], world.reset(), False
    while not done:
        states.append(state)
        actions.append(random.randint(0, 1))
        state, reward, done = world.step(actions[-1])
        rewards.append(reward)
    log_p = torch.log_softmax(policy(torch.tensor(states).to(device)), 1)
    chosen = log_p.gather(1, torch.tensor(actions).to(device)[:, None]).squeeze(1)
    loss = -(chosen * torch.tensor(rewards).to(device)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
