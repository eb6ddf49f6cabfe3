# expect: failed-early; shows: shapes cannot be multiplied
"""The flattened size is for 28 by 28 and the images have 32 by 32: the first forward pass raises."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(torch.flatten(F.max_pool2d(x, 2), 1))))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
for step in range(100_000):
    data = torch.randn(64, 1, 32, 32).to(device)
    target = torch.randint(0, 10, (64,)).to(device)
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
