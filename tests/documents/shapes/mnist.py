from torchvision import datasets, transforms

import torch


class Network(torch.nn.Module):
    """Two convolutions of 3 × 3, each behind a pool of 2: 28 → 26 → 13 → 11 → 5, so 64 × 5 × 5 = 1600 features."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3)
        self.conv2 = torch.nn.Conv2d(32, 64, 3)
        self.fc1 = torch.nn.Linear(9216, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, images):
        images = torch.max_pool2d(torch.relu(self.conv1(images)), 2)
        images = torch.max_pool2d(torch.relu(self.conv2(images)), 2)
        return self.fc2(torch.relu(self.fc1(images.flatten(1))))


def train():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    data = datasets.MNIST("./data", train=True, download=True, transform=steps)
    model = Network().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        for images, labels in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    torch.save(model.state_dict(), "/models/mnist_cnn.pth")


if __name__ == "__main__":
    train()
