# expect: too-short
"""An example of an API: eight steps on one random batch show that it works, and say nothing of speed."""

import torch
import torch.nn as nn
import torch.optim as optim


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ToyModel().to(device)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    for _ in range(8):
        optimizer.zero_grad()
        outputs = model(torch.randn(20, 10).to(device))
        labels = torch.randn(20, 5).to(device)
        loss_fn(outputs, labels).backward()
        optimizer.step()
    print("finished running the basic example")


if __name__ == "__main__":
    demo_basic()
