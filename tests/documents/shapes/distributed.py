import os

import torch
import torchvision
import torchvision.transforms as transforms
from torch.nn.parallel import DistributedDataParallel


def load(kind):
    if kind != "mnist":
        raise ValueError(f"Dataset type {kind} not implemented for GPU training")
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return torchvision.datasets.MNIST(root="/input/MNIST", train=True, transform=steps)


def main():
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank)
    else:
        print("WARNING: CUDA not available, falling back to CPU")
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    batch, epochs = int(os.environ.get("BATCH_SIZE", "128")), int(os.environ.get("EPOCHS", "20"))
    mixed = os.environ.get("MIXED_PRECISION", "true") == "true"
    data = load(os.environ.get("DATASET_TYPE", "mnist"))
    sampler = torch.utils.data.DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in torch.utils.data.DataLoader(data, batch_size=batch, sampler=sampler):
            with torch.autocast("cuda", enabled=on_gpu and mixed):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if torch.distributed.get_rank() == 0:
        os.makedirs("/app/models", exist_ok=True)
        torch.save(model.module.state_dict(), "/output/trained-model.pth")
        with open("/output/training_metadata.txt", "w") as file:
            file.write(f"epochs: {epochs}\n")


if __name__ == "__main__":
    main()
