"""Models as people write them, small: for tests of the loop with what it was not made for."""

from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

Pair = namedtuple("Pair", "tokens following")
WORDS, LENGTH, EXAMPLES = 40, 12, 70


class Block(nn.Module):
    """Block of a ResNet: the second convolution's norm, then the sum, then ReLU in place."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, widths=(8, 16), blocks=1, classes=3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        layers, inputs = [], widths[0]
        for number, width in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(inputs, width, 2 if number and not block else 1))
                inputs = width
        self.layers, self.linear = nn.Sequential(*layers), nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class Tied(nn.Module):
    """A language model: attention by hand, dropout, one matrix for the first and the last layer, a mask as a buffer."""

    def __init__(self, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (
            (q @ k.mT / 4).masked_fill(~self.mask[: tokens.shape[1], : tokens.shape[1]], float("-inf")).softmax(-1)
        )
        return self.head(x + self.drop(self.out(weights @ v)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(WORDS, 12), nn.LSTM(12, 16, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens):
        return self.head(self.lstm(self.tokens(tokens))[0])


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = self.twice(3, 8), self.twice(8, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Sequential(self.twice(16, 8), nn.Conv2d(8, 2, 1))

    @staticmethod
    def twice(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        across = self.down(x)
        return self.last(torch.cat([across, self.up(self.deep(F.max_pool2d(across, 2)))], 1))


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.back = nn.Linear(3 * 64, 8), nn.Linear(4, 3 * 64)

    def forward(self, x):
        mean, log_variance = self.code(x.flatten(1)).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.back(drawn), mean, log_variance


class Branching(nn.Module):
    """Goes another way for some inputs, and takes a dictionary."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, batch):
        means = batch["image"].mean((2, 3))
        return self.small(means) if means.sum() > 0 else self.large(means)


class Dictionaries(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return {"image": self.images[place].numpy(), "meta": {"label": int(self.labels[place])}}


class Pairs(Dataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, place):
        return Pair(self.tokens[place, :-1], self.tokens[place, 1:])


def pictures():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 3, 8, 8, generator=generator), torch.randint(0, 3, (EXAMPLES,), generator=generator)


def words():
    return Pairs(torch.randint(0, WORDS, (EXAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(2)))


def classify(model, images, labels):
    return F.cross_entropy(model(images), labels)


def follow(model, tokens, following):
    return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


def segment(model, images, labels):
    return F.cross_entropy(model(images), (images[:, 0] > 0).long()) + 0 * labels.sum()


def rebuild(model, images, labels):
    rebuilt, mean, log_variance = model(images)
    close_by = F.mse_loss(rebuilt, images.flatten(1))
    prior = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
    return {"loss": close_by + 0.1 * prior, "near": close_by, "prior": prior}


def by_name(model, batch):
    return F.cross_entropy(model(batch), batch["meta"]["label"])


#: Name → model, loss, data set.
OWN = {
    "resnet": (ResNet, classify, lambda: TensorDataset(*pictures())),
    "tied": (Tied, follow, words),
    "lstm": (Lstm, follow, words),
    "unet": (Unet, segment, lambda: TensorDataset(*pictures())),
    "vae": (Vae, rebuild, lambda: TensorDataset(*pictures())),
    "branching": (Branching, by_name, lambda: Dictionaries(*pictures())),
}


# A small training, and the same by a loop as people write it ---------------------------------------------------------

BATCH = 8


def points(count=20):
    return TensorDataset(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def sgd(model, rate=0.05):
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def mean(model, inputs):
    return model(inputs).mean()


def step_of(model=None, loss=classify, dataset=None, optimizer=sgd, batch=BATCH, loading=None, **options):
    """Return a Step of the small network over 20 points; ``optimizer`` takes the model, ``loading`` is of batches()."""
    from seatrial.train import Step, batches

    model = small() if model is None else model
    source = batches(points() if dataset is None else dataset, batch, **(loading or {}))
    return Step(model, loss, optimizer(model), source, **options)


def plain_loop(model, loss, dataset, optimizer, epochs, *, scheduler=None, parts=1, clip=None, collate=None):
    """Train by a plain loop, in the library's order of examples; return the loss of every step."""
    from torch.utils.data import default_collate

    from seatrial.train.data.order import shuffled
    from seatrial.train.saving.rng import seed_all

    seed_all(0)
    losses = []
    for epoch in range(1, epochs + 1):
        order = shuffled(len(dataset), 0, epoch, torch.device("cpu")).tolist()
        for first in range(0, len(order), BATCH):
            rows, total = order[first : first + BATCH], 0.0
            optimizer.zero_grad()
            for part in range(0, len(rows), BATCH // parts):
                chosen = rows[part : part + BATCH // parts]
                batch = (collate or default_collate)([dataset[row] for row in chosen])
                value = loss(model, *batch) if isinstance(batch, (tuple, list)) else loss(model, batch)
                value = (value["loss"] if isinstance(value, dict) else value) * (len(chosen) / len(rows))
                value.backward()
                total = total + value.detach()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            losses.append(float(total))
    return losses


def save_recipe(folder, recipe="digits", model=None, channels=1, pixels=28):
    """Save a recipe's model with random weights as the recipe does; return it, its images and the file of weights."""
    from seatrial.recipes.mnist import network
    from seatrial.train.saving.examples import Normalisation, image_examples, numbered, save_examples
    from seatrial.train.saving.model_files import save_model

    torch.manual_seed(0)
    model = network(pixels, pixels, 10) if model is None else model
    images = torch.randint(0, 256, (20, channels, pixels, pixels), dtype=torch.uint8)
    weights = save_model(model, folder, "trained-model" if recipe == "mnist-deep" else recipe)[-1]
    save_examples(image_examples(recipe, model, images, Normalisation.of(images), numbered(10)), weights)
    return model, images, weights
