"""Parts that loops are combined from: models, kinds of data, optimizers. Each is text of a script.

A model defines ``ITEMS`` (examples), ``Net`` and ``loss_of(net, x, y)``. A kind of data defines ``batches()``,
``unpack(batch)`` → x and y with the examples in the first dimension, and ``size_of(batch)``, the number of examples by
the script's own knowledge. An optimizer defines ``make_opt(parameters)``.
"""

from __future__ import annotations

PREAMBLE = '''\
import collections, copy, itertools, json, math, os, random, sys, threading, time
import numpy, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch.utils.data import RandomSampler, WeightedRandomSampler, random_split

torch.manual_seed(SEED); random.seed(SEED); numpy.random.seed(SEED)
torch.set_num_threads(1)
BS, PAUSE = SIZE, PAUSE_S


class Count:
    """The script's own count of what it does."""

    def __init__(self):
        self.steps = self.examples = self.evaluations = 0
        self.waited_s, self.first_s, self.last_s = 0.0, None, 0.0
        self.known = True

    def step(self, examples):
        now = time.perf_counter()
        self.steps += 1
        if examples is None:
            self.known = False
        if self.first_s is None:
            self.first_s = now
        else:
            self.examples += examples or 0
        self.last_s = now

    def work(self):
        time.sleep(PAUSE)

    def line(self):
        print(json.dumps({"lab": {
            "steps": self.steps, "examples": self.examples if self.known else None,
            "seconds": self.last_s - (self.first_s or self.last_s), "evaluations": self.evaluations,
            "waited_s": self.waited_s,
        }}), flush=True)


count = Count()
'''

MODELS = {
    "mlp": """
ITEMS = [(torch.randn(16), random.randrange(4)) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(16, 24), nn.ReLU()), nn.Linear(24, 4)
    def forward(self, x): return self.head(self.body(x))
def loss_of(net, x, y): return F.cross_entropy(net(x), y)
""",
    "convnet": """
ITEMS = [(torch.randn(3, 8, 8), random.randrange(4)) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(24, 4)
    def forward(self, x): return self.head(self.body(x))
def loss_of(net, x, y): return F.cross_entropy(net(x), y)
""",
    "gru": """
ITEMS = [(torch.randint(0, 50, (12,)), random.randrange(4)) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.rnn, self.head = nn.Embedding(50, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 4)
    def forward(self, x): return self.head(self.rnn(self.body(x))[0][:, -1])
def loss_of(net, x, y): return F.cross_entropy(net(x), y)
""",
    "transformer": """
ITEMS = [(torch.randint(0, 50, (10,)), random.randrange(4)) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Embedding(50, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)
    def forward(self, x): return self.head(self.layer(self.body(x)).mean(1))
def loss_of(net, x, y): return F.cross_entropy(net(x), y)
""",
    "autoencoder": """
ITEMS = [(torch.randn(20), 0) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(20, 8), nn.Tanh()), nn.Linear(8, 20)
    def forward(self, x): return self.head(self.body(x))
def loss_of(net, x, y): return F.mse_loss(net(x), x)
""",
    "tied": """
ITEMS = [(torch.randn(16), random.randrange(4)) for _ in range(480)]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16); self.again = nn.Linear(16, 16); self.again.weight = self.body.weight
        self.head = nn.Linear(16, 4)
    def forward(self, x): return self.head(self.again(self.body(x).tanh()))
def loss_of(net, x, y): return F.cross_entropy(net(x), y)
""",
}

_PLAIN = """
class Items(Dataset):
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]
def unpack(batch): return batch[0], batch[1]
def size_of(batch): return len(batch[1])
"""

DATA = {
    "loader": _PLAIN + "def batches(bs=BS): return DataLoader(Items(ITEMS), batch_size=bs, shuffle=True)\n",
    "drop-last": _PLAIN
    + "def batches(bs=BS): return DataLoader(Items(ITEMS[:470]), batch_size=bs, shuffle=True, drop_last=True)\n",
    "partial-last": _PLAIN + "def batches(bs=BS): return DataLoader(Items(ITEMS[:471]), batch_size=bs, shuffle=True)\n",
    "workers": _PLAIN + "def batches(bs=BS): return DataLoader(Items(ITEMS), bs, shuffle=True, num_workers=1)\n",
    "subset": _PLAIN
    + "PART, _ = random_split(Items(ITEMS), [400, 80])\ndef batches(bs=BS): return DataLoader(PART, bs, shuffle=True)\n",
    "weighted": _PLAIN
    + """
def batches(bs=BS):
    sampler = WeightedRandomSampler(torch.rand(len(ITEMS)), 400, replacement=True)
    return DataLoader(Items(ITEMS), batch_size=bs, sampler=sampler)
""",
    "tensors": _PLAIN
    + """
ALL = TensorDataset(torch.stack([x for x, _ in ITEMS]), torch.tensor([y for _, y in ITEMS]))
def batches(bs=BS): return DataLoader(ALL, bs, shuffle=True)
""",
    "dicts": """
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return {"id": f"item {i}", "input": ITEMS[i][0], "labels": ITEMS[i][1]}
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True)
def unpack(batch): return batch["input"], batch["labels"]
def size_of(batch): return len(batch["id"])
""",
    "detection": """
# As torchvision's references/detection: a tuple of images, a tuple of targets.
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return ITEMS[i][0], {"label": torch.tensor(ITEMS[i][1]), "boxes": torch.rand(3, 4)}
def collate(batch): return tuple(zip(*batch))
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True, collate_fn=collate)
def unpack(batch): return torch.stack(list(batch[0])), torch.stack([each["label"] for each in batch[1]])
def size_of(batch): return len(batch[0])
""",
    "time-first": """
# As the sequence-to-sequence tutorials: time is the first dimension.
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return ITEMS[i]
def collate(batch): return torch.stack([x for x, _ in batch], dim=1), torch.tensor([y for _, y in batch])
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True, collate_fn=collate)
def unpack(batch): return batch[0].transpose(0, 1), batch[1]
def size_of(batch): return batch[1].shape[0]
""",
    "lengths-first": """
# As the classification of text: lengths, padded tokens, labels; the longest first.
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return ITEMS[i]
def collate(batch):
    return {"total": torch.tensor([sum(len(x) for x, _ in batch)]), "x": torch.stack([x for x, _ in batch]),
            "y": torch.tensor([y for _, y in batch])}
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True, collate_fn=collate)
def unpack(batch): return batch["x"], batch["y"]
def size_of(batch): return len(batch["y"])
""",
    "graphs": """
# As graph libraries batch: nodes of all graphs in one tensor, edges, and which graph a node is of.
Graphs = collections.namedtuple("Graphs", "x edges graph y")
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return ITEMS[i]
def collate(batch):
    nodes = [random.randint(2, 5) for _ in batch]
    graph = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(nodes))
    x = torch.stack([x for x, _ in batch])[graph]
    return Graphs(x, torch.randint(0, len(graph), (2, 3 * len(graph))), graph, torch.tensor([y for _, y in batch]))
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True, collate_fn=collate)
def unpack(batch):
    first = torch.unique(batch.graph, return_inverse=True)[1]
    place = torch.zeros(len(batch.y), dtype=torch.long).scatter_(0, first.flip(0), torch.arange(len(first)).flip(0))
    return batch.x[place], batch.y
def size_of(batch): return len(batch.y)
""",
    "objects": """
class Batch:
    def __init__(self, items): self.inputs, self.labels = torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])
class Items(Dataset):
    def __len__(self): return len(ITEMS)
    def __getitem__(self, i): return ITEMS[i]
def batches(bs=BS): return DataLoader(Items(), batch_size=bs, shuffle=True, collate_fn=Batch)
def unpack(batch): return batch.inputs, batch.labels
def size_of(batch): return len(batch.labels)
""",
    "stream": """
class Stream(IterableDataset):
    def __iter__(self): return iter(ITEMS[:470])
def batches(bs=BS): return DataLoader(Stream(), batch_size=bs)
def unpack(batch): return batch[0], batch[1]
def size_of(batch): return len(batch[1])
""",
    "stream-batched": """
class Stream(IterableDataset):
    def __iter__(self):
        for i in range(0, 480, BS):
            items = ITEMS[i:i + BS]
            yield torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])
def batches(bs=BS): return DataLoader(Stream(), batch_size=None)
def unpack(batch): return batch
def size_of(batch): return len(batch[1])
""",
    "buckets": _PLAIN
    + """
class Buckets:
    def __iter__(self):
        order = torch.randperm(len(ITEMS)).tolist()
        while order:
            n = random.choice([BS // 2, BS, BS * 2]); yield order[:n]; order = order[n:]
    def __len__(self): return 2 * len(ITEMS) // (3 * BS)
def batches(bs=BS): return DataLoader(Items(ITEMS), batch_sampler=Buckets())
""",
    "batch-sampler": _PLAIN
    + """
def batches(bs=BS): return DataLoader(Items(ITEMS), batch_sampler=BatchSampler(RandomSampler(ITEMS), bs, False))
""",
    "tqdm": _PLAIN
    + """
from tqdm import tqdm
def batches(bs=BS): return tqdm(DataLoader(Items(ITEMS), batch_size=bs, shuffle=True), disable=None, mininterval=0.5)
""",
    "endless": _PLAIN
    + """
def endless(loader):
    while True:
        yield from loader
SOURCE = endless(DataLoader(Items(ITEMS), BS, shuffle=True))
def batches(bs=BS): return itertools.islice(SOURCE, 30)
""",
    "two-loaders": _PLAIN
    + """
OTHER = [(x + 1, y) for x, y in ITEMS]
def batches(bs=BS):
    for (a, y), (b, _) in zip(DataLoader(Items(ITEMS), bs, shuffle=True), DataLoader(Items(OTHER), bs, shuffle=True)):
        yield (a if a.dtype is torch.long else (a + b) / 2), y, b
def size_of(batch): return 2 * len(batch[1])  # examples of either data set
""",
    "sliced": """
X, Y = torch.stack([x for x, _ in ITEMS]), torch.tensor([y for _, y in ITEMS])
def batches(bs=BS):
    order = torch.randperm(len(X))
    for i in range(0, len(X), bs): yield X[order[i:i + bs]], Y[order[i:i + bs]]
def unpack(batch): return batch
def size_of(batch): return len(batch[1])
""",
    "drawn": """
X, Y = torch.stack([x for x, _ in ITEMS]), torch.tensor([y for _, y in ITEMS])
def get_batch(bs=BS):
    ix = torch.randint(len(X), (bs,)); return X[ix], Y[ix]
def batches(bs=BS): return (get_batch(bs) for _ in range(30))
def unpack(batch): return batch
def size_of(batch): return len(batch[1])
""",
    "preloaded": _PLAIN
    + "KEPT = list(DataLoader(Items(ITEMS), BS))\ndef batches(bs=BS): return random.sample(KEPT, len(KEPT))\n",
    "thread-queue": _PLAIN
    + """
import queue
def batches(bs=BS):
    full = queue.Queue(4)
    def fill():
        for batch in DataLoader(Items(ITEMS), bs, shuffle=True): full.put(batch)
        full.put(None)
    threading.Thread(target=fill, daemon=True).start()
    return iter(full.get, None)
""",
}

#: Batches whose first dimension is no example need data of this shape.
FOR_MODEL = {"time-first": ("gru", "transformer"), "lengths-first": ("gru", "transformer"), "graphs": ("mlp", "tied")}

OPTIMIZERS = {
    "sgd": "def make_opt(params): return torch.optim.SGD(params, lr=0.01)\n",
    "momentum": "def make_opt(params): return torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True)\n",
    "adam": "def make_opt(params): return torch.optim.Adam(params, lr=1e-3)\n",
    "adamw-foreach": "def make_opt(params): return torch.optim.AdamW(params, lr=1e-3, foreach=True)\n",
    "adamw-fused": "def make_opt(params): return torch.optim.AdamW(params, lr=1e-3, fused=True)\n",
    "rmsprop": "def make_opt(params): return torch.optim.RMSprop(params, lr=1e-3)\n",
    "adagrad": "def make_opt(params): return torch.optim.Adagrad(params, lr=1e-2)\n",
    "groups": """
def make_opt(params):
    params = list(params)
    return torch.optim.AdamW([{"params": params[:1], "lr": 1e-4}, {"params": params[1:], "weight_decay": 0.1}], lr=1e-3)
""",
    "lion": """
class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)): super().__init__(params, dict(lr=lr, betas=betas))
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad(): loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(torch.sign(m * group["betas"][0] + p.grad * (1 - group["betas"][0])), alpha=-group["lr"])
                m.mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])
        return loss
def make_opt(params): return Lion(params)
""",
    "scheduled": """
class Scheduled:
    def __init__(self, params):
        self.inner = torch.optim.SGD(params, lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.inner, 100)
        self.param_groups = self.inner.param_groups
    def zero_grad(self): self.inner.zero_grad(set_to_none=True)
    def step(self): self.inner.step(); self.schedule.step()
def make_opt(params): return Scheduled(params)
""",
    "lookahead": """
class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha, self.n = base, k, alpha, 0
        super().__init__([p for g in base.param_groups for p in g["params"]], {})
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
    def step(self, closure=None):
        self.base.step(); self.n += 1
        if self.n % self.k == 0:
            with torch.no_grad():
                for slow, p in zip(self.slow, (p for g in self.param_groups for p in g["params"])):
                    slow.add_(p - slow, alpha=self.alpha); p.copy_(slow)
def make_opt(params): return Lookahead(torch.optim.SGD(params, lr=0.01))
""",
}
