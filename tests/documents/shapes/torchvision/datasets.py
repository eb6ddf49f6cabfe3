"""MNIST's four IDX files; ``download`` makes small ones of random pictures in place of the real ones."""

import struct
from pathlib import Path

import torch


class MNIST(torch.utils.data.Dataset):
    COUNT = 128

    def __init__(self, root, train=True, transform=None, download=False):
        folder, name = Path(root) / "MNIST" / "raw", "train" if train else "t10k"
        if download:
            folder.mkdir(parents=True, exist_ok=True)
            pixels, answers = torch.randint(256, (self.COUNT, 28, 28)), torch.randint(10, (self.COUNT,))
            (folder / f"{name}-images-idx3-ubyte").write_bytes(
                struct.pack(">4i", 2051, self.COUNT, 28, 28) + bytes(pixels.flatten().tolist())
            )
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(
                struct.pack(">2i", 2049, self.COUNT) + bytes(answers.tolist())
            )
        if not folder.exists():
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        images = (folder / f"{name}-images-idx3-ubyte").read_bytes()[16:]
        self.images = torch.frombuffer(bytearray(images), dtype=torch.uint8).view(-1, 28, 28)
        self.labels = list((folder / f"{name}-labels-idx1-ubyte").read_bytes()[8:])
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return self.transform(self.images[place]), self.labels[place]
