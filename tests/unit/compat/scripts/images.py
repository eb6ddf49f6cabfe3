"""In the manner of Horovod's image examples: sampler, scaled learning rate, averaged metrics, checkpoint and resume."""

import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

folder = sys.argv[1]
hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)


class Metric:
    def __init__(self, name):
        self.name, self.sum, self.count = name, torch.tensor(0.0), 0

    def update(self, value):
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.count += 1

    @property
    def average(self):
        return (self.sum / self.count).item()


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = hvd.SyncBatchNorm(channels), hvd.SyncBatchNorm(channels)

    def forward(self, images):
        hidden = torch.relu(self.norm_one(self.one(images)))
        return torch.relu(images + self.norm_two(self.two(hidden)))


images = torch.randn(256, 1, 8, 8)
labels = (images[:, :, :4].mean((1, 2, 3)) > images[:, :, 4:].mean((1, 2, 3))).long()
data = TensorDataset(images, labels)
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Block(8), nn.Flatten(), nn.Linear(512, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

begun = 0
for epoch in range(4, 0, -1):
    if Path(f"{folder}/checkpoint-{epoch}.pt").exists():
        begun = epoch
        break
begun = hvd.broadcast(torch.tensor(begun), root_rank=0, name="begun").item()
if begun and hvd.rank() == 0:
    checkpoint = torch.load(f"{folder}/checkpoint-{begun}.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(begun, begun + 2):
    model.train()
    sampler.set_epoch(epoch)
    loss_of_epoch = Metric("loss")
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
        loss_of_epoch.update(loss)
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1} loss {loss_of_epoch.average:.4f}", flush=True)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/checkpoint-{epoch + 1}.pt"
        )

weights = hvd.allgather_object([each.double().sum().item() for each in model.state_dict().values()])
assert all(each == weights[0] for each in weights), weights
print(f"rank {hvd.rank()} of {hvd.size()} has the weights of all\n", end="", flush=True)
