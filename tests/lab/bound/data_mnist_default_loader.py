# expect: data-bound
"""The MNIST tutorial with its default loader: turning bytes into normalised tensors one by one outweighs the network."""

import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, transform):
        self.data = torch.randint(0, 255, (60_000, 28, 28), dtype=torch.uint8)
        self.targets = torch.randint(0, 10, (60_000,))
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = np.array(self.data[index].numpy(), copy=True)
        return self.transform(image), int(self.targets[index])


def to_tensor_and_normalise(image):
    tensor = torch.from_numpy(image[None]).contiguous().to(torch.float32).div(255)
    mean, std = torch.as_tensor([0.1307]).view(-1, 1, 1), torch.as_tensor([0.3081]).view(-1, 1, 1)
    return tensor.clone().sub_(mean).div_(std)


model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train_loader = DataLoader(Digits(to_tensor_and_normalise), batch_size=256, shuffle=True)
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 100 == 0:
            print(f"Train [{batch_idx * len(data)}/60000] Loss: {loss.item():.6f}")
        if time.time() > end:
            break
