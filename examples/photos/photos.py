"""An image classifier as tutorials have it: a picture is read, cropped and normalised when it is needed.

    seatrial run photos.py -- --epochs 2

It makes its pictures itself, so that nothing is downloaded. docs/why-is-my-gpu-idle.md walks it from idle to busy.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Pictures of 72 × 72, each with a coloured square; the label is the square's quarter and colour."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        dice = torch.Generator().manual_seed(index)
        label = index % 12
        picture = torch.randint(0, 200, (3, 72, 72), generator=dice, dtype=torch.uint8)
        row, column, colour = 36 * (label // 6), 36 * (label // 3 % 2), label % 3
        picture[colour, row + 8 : row + 28, column + 8 : column + 28] = 255
        top, left = torch.randint(0, 8, (2,)).tolist()
        picture = picture[:, top : top + 64, left : left + 64].float() / 255
        if torch.rand(()) < 0.5:
            picture = (picture + 0.05 * torch.randn_like(picture)).clamp(0, 1)
        mean, deviation = torch.tensor([0.45, 0.45, 0.45]), torch.tensor([0.25, 0.25, 0.25])
        return (picture - mean[:, None, None]) / deviation[:, None, None], label


def block(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.Sequential(
            block(3, width, 1),
            block(width, 2 * width, 2),
            block(2 * width, 4 * width, 2),
            block(4 * width, 8 * width, 2),
        )
        self.head = nn.Linear(8 * width, 12)

    def forward(self, pictures):
        return self.head(self.blocks(pictures).mean((2, 3)))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--photos", type=int, default=50_000)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--width", type=int, default=64)
    options = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Network(options.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Photos(options.photos), batch_size=options.batch, shuffle=True)
    for epoch in range(options.epochs):
        total, right = 0.0, 0
        for pictures, labels in loader:
            pictures, labels = pictures.to(device), labels.to(device)
            scores = model(pictures)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += (scores.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, accuracy {right / len(loader.dataset):.3f}")


if __name__ == "__main__":
    main()
