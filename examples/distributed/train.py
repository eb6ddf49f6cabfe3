"""Train one network on several GPUs: DistributedDataParallel under torchrun or an operator, or DataParallel.

RANK and WORLD_SIZE give the number of this process and of all; without them it trains alone. EPOCHS, BATCH_SIZE (of
each GPU), LEARNING_RATE and MIXED_PRECISION are variables, too. The digits are generated: ten patterns and noise.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "3"))
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "128"))
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.003"))
MIXED_PRECISION = os.environ.get("MIXED_PRECISION", "true") == "true"
MODELS = Path(os.environ.get("MODELS", "models"))


def digits(count: int) -> TensorDataset:
    """Return images float32 [N, 1, 28, 28] and labels int64 [N]; the same on each rank."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(10, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels)


def network() -> nn.Module:
    """28 → 14 → 7 pixels a side: padded convolutions keep the size, only the pools halve it."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def main() -> None:
    gpu = torch.cuda.is_available()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    data_parallel = "--data-parallel" in sys.argv
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    MODELS.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written fails before the training
    torch.manual_seed(0)
    model, batch = network().to(device), BATCH_SIZE
    if world > 1:
        if gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if gpu else "gloo")
        model = DistributedDataParallel(model, device_ids=[device.index] if gpu else None)
    elif data_parallel and torch.cuda.device_count() > 1:
        model, batch = DataParallel(model), BATCH_SIZE * torch.cuda.device_count()
    # Ranks share the output, and Python's unbuffered print would write the line end apart: one write has both.
    print(f"rank {rank} of {world} on {device}, {type(model).__name__}, batch {batch}\n", end="", flush=True)

    data = digits(4096)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch, sampler=sampler, pin_memory=gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        began, right = time.perf_counter(), torch.zeros((), device=device)
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu and MIXED_PRECISION):
                outputs = model(images)
                loss = nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (outputs.argmax(1) == labels).sum()
        if world > 1:
            dist.all_reduce(right)  # of all ranks, not of this one
        if rank == 0:
            seconds = time.perf_counter() - began
            accuracy = float(right) / len(data)
            print(f"epoch {epoch}: accuracy {accuracy:.2%}, {len(data) / seconds:,.0f} images/s", flush=True)

    if rank == 0:
        plain = model.module if isinstance(model, DistributedDataParallel | DataParallel) else model
        torch.save(plain.state_dict(), MODELS / "model.pth")
        print(f"saved to {MODELS / 'model.pth'}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
