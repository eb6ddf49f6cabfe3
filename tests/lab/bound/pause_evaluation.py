# expect: evaluation-bound
"""The whole validation set after every twenty steps, in small batches: the model is tested more than it is trained."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    def __init__(self, model, train, valid):
        self.model, self.train, self.valid = model.to(device), train, valid
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def evaluate(self):
        self.model.eval()
        right = 0
        with torch.no_grad():
            for x, y in self.valid:
                right += (self.model(x.to(device)).argmax(1) == y.to(device)).sum()
        self.model.train()
        return right.item() / len(self.valid.dataset)

    def fit(self, seconds):
        end, step = time.time() + seconds, 0
        while time.time() < end:
            for x, y in self.train:
                loss = nn.functional.cross_entropy(self.model(x.to(device)), y.to(device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                if step % 20 == 0:
                    print(f"step {step} loss {loss.item():.3f} accuracy {self.evaluate():.3f}")
                if time.time() > end:
                    break


if __name__ == "__main__":
    made = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
    loaders = DataLoader(made, batch_size=64, shuffle=True), DataLoader(made, batch_size=64)
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    Trainer(net, *loaders).fit(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
