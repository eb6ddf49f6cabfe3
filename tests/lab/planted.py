"""Scripts with a planted bottleneck, each in two forms: the original, and one with the change that removes it.

A section of ``SHAPES`` begins with ``### name | cause | words of the first fix``; equally right causes or
words are separated by ``/``. A line that ends with ``#-`` is only in the original script, and one that ends with
``#+`` only in the mended one. Every script counts its own examples a second, from the fourth step on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PREAMBLE = '''\
import collections, contextlib, copy, gc, hashlib, io, json, logging, math, os, queue, random, sys, tempfile, threading, time, zlib
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
BACKEND = "aot_eager"  # which compiles in little time
WORKERS = 8 if (os.cpu_count() or 1) >= 12 else 2
random.seed(0); np.random.seed(0); torch.manual_seed(0)
if not CUDA:
    torch.set_num_threads(1)


class Clock:
    """Ends the run after its seconds of steps, and counts examples."""

    def __init__(self, seconds):
        self.seconds, self.began, self.steps, self.examples = seconds, None, 0, 0

    def over(self, examples):
        now = time.perf_counter()
        self.steps += 1
        if self.steps <= 2:
            self.began = now
        ends = now - self.began > self.seconds and self.steps > 13
        if ends and CUDA:
            torch.cuda.synchronize()
            now = time.perf_counter()
        if self.steps <= 3:
            self.first = now
        else:
            self.examples += examples
        if ends:
            rate = self.examples / (now - self.first)
            print(json.dumps({"planted": {"steps": self.steps, "examples_per_s": rate}}), flush=True)
        return ends


clock = Clock(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)


def classifier(inputs, classes=10, width=128):
    width = width if CUDA else width // 8
    net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)).to(device)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


def convnet(classes=10, width=32):
    width = width if CUDA else width // 8
    net = nn.Sequential(nn.Conv2d(3, width, 3, 4), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)).to(device)
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def learn(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def epochs(loader):
    while True:
        yield from loader
'''

SHAPES = r"""
### decode-jpeg | data-bound | workers
from PIL import Image
def photo(i):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(i).integers(0, 255, (24, 24, 3), np.uint8)).resize((320, 240)).save(file, "JPEG")
    return file.getvalue()
class Photos(Dataset):
    def __init__(self): self.files = [photo(i) for i in range(64)]
    def __len__(self): return 20_000
    def __getitem__(self, i):
        image = Image.open(io.BytesIO(self.files[i % 64])).convert("RGB").resize((96, 96))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255), i % 10
net, optimizer = convnet()
loader = DataLoader(Photos(), 32, shuffle=True)  #-
loader = DataLoader(Photos(), 32, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### augment-in-main | data-bound | workers
class Augmented(Dataset):
    def __init__(self): self.images = np.random.randint(0, 255, (256, 72, 72, 3), np.uint8)
    def __len__(self): return len(self.images) * 100
    def __getitem__(self, i):
        image = self.images[i % 256].astype(np.float64)
        if random.random() < 0.5: image = image[:, ::-1]
        top, left = np.random.randint(0, 8, 2)
        image = image[top : top + 64, left : left + 64] * np.random.uniform(0.8, 1.2)
        image = (image - image.mean((0, 1))) / image.std((0, 1))
        return torch.tensor(image.transpose(2, 0, 1).copy(), dtype=torch.float32), i % 10
net, optimizer = convnet()
loader = DataLoader(Augmented(), 64, shuffle=True)  #-
loader = DataLoader(Augmented(), 64, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### remote-reads | data-bound | workers
class Bucket(Dataset):
    def __len__(self): return 50_000
    def __getitem__(self, i):
        time.sleep(0.002)  # a request to the object store
        return torch.full((64,), i / 50_000), i % 10
net, optimizer = classifier(64)
loader = DataLoader(Bucket(), 32, shuffle=True)  #-
loader = DataLoader(Bucket(), 32, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### too-few-workers | data-bound | workers
class Bucket(Dataset):
    def __len__(self): return 50_000
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((64,), i / 50_000), i % 10
net, optimizer = classifier(64)
loader = DataLoader(Bucket(), 16, num_workers=1)  #-
loader = DataLoader(Bucket(), 16, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### workers-start-each-epoch | data-bound | persistent_workers
class Table(Dataset):
    def __init__(self): self.rows = torch.randn(256, 64)
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i], i % 10
net, optimizer = classifier(64)
loader = DataLoader(Table(), 64, shuffle=True, num_workers=4)  #-
loader = DataLoader(Table(), 64, shuffle=True, num_workers=4, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### loader-made-each-epoch | data-bound | persistent_workers/outside/once
class Table(Dataset):
    def __init__(self): self.rows = torch.randn(320, 64)
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i], i % 10
net, optimizer = classifier(64)
table, done = Table(), False
loader = DataLoader(table, 64, shuffle=True, num_workers=4, persistent_workers=True)  #+
while not done:
    loader = DataLoader(table, 64, shuffle=True, num_workers=4)  #-
    for x, y in loader:
        learn(net, optimizer, x.to(device), y.to(device))
        done = clock.over(len(x))
        if done: break

### collate-pads-in-python | data-bound | workers
class Sentences(Dataset):
    def __init__(self): self.texts = [[random.randrange(5000) for _ in range(random.randint(20, 200))] for _ in range(4000)]
    def __len__(self): return len(self.texts)
    def __getitem__(self, i): return self.texts[i], i % 10
def pad(batch):
    longest = max(len(text) for text, _ in batch)
    rows = []
    for text, _ in batch:
        row = []
        for place in range(longest):
            row.append(text[place] if place < len(text) else 0)
        rows.append(row)
    return torch.tensor(rows), torch.tensor([label for _, label in batch])
net = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(Sentences(), 64, shuffle=True, collate_fn=pad)  #-
loader = DataLoader(Sentences(), 64, shuffle=True, collate_fn=pad, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### tensor-rows-one-by-one | data-bound | workers/batch/tensor
data = TensorDataset(torch.randn(20_000, 64), torch.randint(0, 10, (20_000,)))
net, optimizer = classifier(64)
loader = DataLoader(data, 512, shuffle=True)  #-
loader = DataLoader(data, 512, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### csv-lines | data-bound | workers
class Csv(Dataset):
    def __init__(self): self.lines = [",".join(f"{random.random():.6f}" for _ in range(120)) for _ in range(2000)]
    def __len__(self): return len(self.lines)
    def __getitem__(self, i):
        values = [float(cell) for cell in self.lines[i].split(",")]
        low, high = min(values), max(values)
        return torch.tensor([(value - low) / (high - low) for value in values]), i % 10
net, optimizer = classifier(120)
loader = DataLoader(Csv(), 64, shuffle=True)  #-
loader = DataLoader(Csv(), 64, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### file-for-each-example | data-bound | workers
folder = tempfile.mkdtemp()
for i in range(400): np.savez_compressed(f"{folder}/{i}.npz", image=np.random.randint(0, 9, (3, 64, 64), np.uint8))
class Files(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        with np.load(f"{folder}/{i}.npz") as file:
            return torch.from_numpy(file["image"]).float(), i % 10
net, optimizer = convnet()
loader = DataLoader(Files(), 32, shuffle=True)  #-
loader = DataLoader(Files(), 32, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### stream-of-text | data-bound | workers
class Stream(IterableDataset):
    def __iter__(self):
        while True:
            words = [hash((random.random(), place)) % 5000 for place in range(300)]
            yield torch.tensor([word for word in words if word % 3]) [:128], len(words) % 10
net = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(Stream(), 32)  #-
loader = DataLoader(Stream(), 32, num_workers=WORKERS)  #+
for x, y in loader:
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### pairs-searched | data-bound | workers
class Pairs(Dataset):
    def __init__(self): self.labels, self.rows = [random.randrange(10) for _ in range(4000)], torch.randn(4000, 64)
    def __len__(self): return 4000
    def __getitem__(self, i):
        same = [j for j, label in enumerate(self.labels) if label == self.labels[i]]
        return self.rows[i] - self.rows[random.choice(same)], self.labels[i]
net, optimizer = classifier(64)
loader = DataLoader(Pairs(), 32, shuffle=True)  #-
loader = DataLoader(Pairs(), 32, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### tokenise-in-getitem | data-bound | workers
import re
class Reviews(Dataset):
    def __init__(self): self.texts = [" ".join(random.choice(["good", "bad,", "film.", "it's", "Actors"]) for _ in range(300)) for _ in range(500)]
    def __len__(self): return 5000
    def __getitem__(self, i):
        words = re.findall(r"\w+|[^\w\s]", self.texts[i % 500].lower())
        return torch.tensor([zlib.crc32(word.encode()) % 5000 for word in words][:256]), i % 10
net = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(net.parameters())
loader = DataLoader(Reviews(), 32, shuffle=True)  #-
loader = DataLoader(Reviews(), 32, shuffle=True, num_workers=WORKERS, persistent_workers=True)  #+
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break

### collect-garbage | python-bound | gc.collect/collect
known = [[i] for i in range(60_000)]
net, optimizer = classifier(64)
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
while not clock.over(256):
    learn(net, optimizer, x, y)
    gc.collect()  #-

### empty-cache | python-bound/synchronisation-bound | empty_cache
net = nn.Sequential(*[nn.Sequential(nn.Linear(512 + 64 * k, 576 + 64 * k), nn.GELU()) for k in range(24)], nn.Linear(2048, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
rows = 4096 if CUDA else 8
x, y = torch.randn(rows, 512, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows):
    learn(net, optimizer, x, y)
    torch.cuda.empty_cache()  #-

### rate-limit | python-bound | sleep
net, optimizer = classifier(64)
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
while not clock.over(256):
    learn(net, optimizer, x, y)
    time.sleep(0.008)  # be kind to the others on this machine  #-

### log-file-synced | python-bound | fsync/write/log
log = open(tempfile.mkstemp()[1], "a")
def write_log(step):
    time.sleep(0)
    for key in range(40):
        log.write(json.dumps({"step": step, "key": key, "values": [random.random() for _ in range(60)]}) + "\n")
    log.flush()
    os.fsync(log.fileno())
net, optimizer = classifier(64)
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
while not clock.over(256):
    learn(net, optimizer, x, y)
    write_log(clock.steps)  #-
    if clock.steps % 50 == 0: write_log(clock.steps)  #+

### queue-of-an-actor | python-bound/data-bound | get/actor/producer
ready = queue.Queue(8)
def actor():
    while True:
        time.sleep(0.02)  # plays
        ready.put((torch.randn(256, 64), torch.randint(0, 10, (256,))))
for _ in range(1):  #-
for _ in range(8):  #+
    threading.Thread(target=actor, daemon=True).start()
net, optimizer = classifier(64)
while not clock.over(256):
    x, y = ready.get()
    learn(net, optimizer, x.to(device), y.to(device))

### game-in-python | python-bound | play
def play(length):
    x, v, seen = 0.0, 0.0, []
    for _ in range(length):
        force = random.choice((-1.0, 1.0))
        v += 0.05 * force - 0.02 * math.sin(3 * x)
        x += v
        if abs(x) > 2: x = v = 0.0
        seen.append([x, v, math.cos(x), math.sin(x)])
    return seen
policy, optimizer = classifier(4, 2)
episode = torch.tensor(play(4000), device=device)  #+
while not clock.over(4000):
    episode = torch.tensor(play(4000)).to(device)  #-
    learn(policy, optimizer, episode, (episode[:, 0] > 0).long())

### replay-of-lists | python-bound | sample/row/replay/buffer/array
buffer = collections.deque(([random.random() for _ in range(40)], random.randrange(10)) for _ in range(5000))
rows, labels = (torch.tensor([row[k] for row in buffer], device=device) for k in (0, 1))  #+
net, optimizer = classifier(40)
while not clock.over(512):
    batch = random.sample(buffer, 512)  #-
    x, y = torch.tensor([row[0] for row in batch]), torch.tensor([row[1] for row in batch])  #-
    chosen = torch.randint(0, 5000, (512,), device=device)  #+
    x, y = rows[chosen], labels[chosen]  #+
    learn(net, optimizer, x.to(device), y.to(device))

### windows-cut-by-numpy | python-bound | get_batch/window/convolve
signal = np.random.randn(1_000_000)
kernel = np.hanning(64)
def get_batch():
    starts = np.random.randint(0, len(signal) - 1024, 64)
    windows = [np.convolve(signal[s : s + 1024], kernel, "same") for s in starts]
    return torch.tensor(np.stack(windows), dtype=torch.float32), torch.from_numpy(starts % 10)
net, optimizer = classifier(1024)
made = [get_batch() for _ in range(20)]  #+
while not clock.over(64):
    x, y = get_batch()  #-
    x, y = random.choice(made)  #+
    learn(net, optimizer, x.to(device), y.to(device))

### negatives-by-rejection | python-bound | negative
seen = {(user, random.randrange(2000)) for user in range(2000) for _ in range(30)}
def negatives(count):
    found = []
    while len(found) < count:
        user, item = random.randrange(2000), random.randrange(2000)
        if (user, item) not in seen: found.append((user, item))
    return torch.tensor(found)
table = nn.Embedding(2000, 32).to(device)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
pool = negatives(50_000).to(device)  #+
while not clock.over(8192):
    pairs = negatives(8192).to(device)  #-
    pairs = pool[torch.randint(0, 50_000, (8192,), device=device)]  #+
    loss = F.softplus((table(pairs[:, 0]) * table(pairs[:, 1])).sum(1)).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### deepcopy-each-step | python-bound/launch-bound | deepcopy
net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(12)], nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
best = None
while not clock.over(256):
    learn(net, optimizer, x, y)
    best = copy.deepcopy(net)  # "the last good one"  #-

### f1-in-python | python-bound | f1/confusion
def f1(guesses, labels):
    table = [[0] * 10 for _ in range(10)]
    for guess, label in zip(guesses, labels): table[label][guess] += 1
    return sum(2 * table[k][k] / max(1, sum(table[k]) + sum(row[k] for row in table)) for k in range(10)) / 10
net, optimizer = classifier(64)
x, y = torch.randn(64, 64, device=device), torch.randint(0, 10, (64,), device=device)
guesses, labels = ([random.randrange(10) for _ in range(50_000)] for _ in range(2))
while not clock.over(64):
    learn(net, optimizer, x, y)
    score = f1(guesses, labels)  #-
    if clock.steps % 50 == 0: score = f1(guesses, labels)  #+

### hashes-every-batch | python-bound | sha/hash/digest
net, optimizer = classifier(3072)
images, labels = torch.randn(128, 3072), torch.randint(0, 10, (128,))
seen = set()
while not clock.over(128):
    seen.add(hashlib.sha256(images.numpy().tobytes() * 8).hexdigest())  # have we had it?  #-
    learn(net, optimizer, images.to(device), labels.to(device))

### masks-words-in-python | python-bound | mask
words = 5000 if CUDA else 20
texts = [[random.randrange(words) for _ in range(128)] for _ in range(64)]
def masked(rows):
    shown, wanted = [], []
    for row in rows:
        hidden = [random.random() < 0.15 for _ in row]
        shown.append([1 if h else w for w, h in zip(row, hidden)])
        wanted.append([w if h else -100 for w, h in zip(row, hidden)])
    return torch.tensor(shown), torch.tensor(wanted)
net = nn.Sequential(nn.Embedding(words, 32), nn.Linear(32, words)).to(device)
optimizer = torch.optim.Adam(net.parameters())
shown, wanted = (each.to(device) for each in masked(texts))  #+
while not clock.over(64):
    shown, wanted = (each.to(device) for each in masked(texts))  #-
    learn(nn.Sequential(net, nn.Flatten(0, 1)), optimizer, shown, wanted.flatten())

### norm-items | synchronisation-bound | norm/item
net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(24)], nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(512, 256, device=device), torch.randint(0, 10, (512,), device=device)
norms = {}
while not clock.over(512):
    learn(net, optimizer, x, y)
    for name, p in net.named_parameters():  #-
        norms[name] = p.grad.norm().item()  #-

### prints-losses | synchronisation-bound | print/format
net = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(128 if CUDA else 8, 2048, device=device), torch.randint(0, 10, (128 if CUDA else 8,), device=device)
while not clock.over(len(x)):
    loss = learn(net, optimizer, x, y)
    for p in net.parameters(): print(f"{clock.steps} {loss} {p.grad.abs().mean()} {p.abs().max()}", file=sys.stderr)  #-
    if clock.steps % 50 == 0: print(f"{clock.steps} {loss}", file=sys.stderr)  #+

### outputs-to-the-host | synchronisation-bound/host-memory-bound | cpu/numpy/tolist
net, optimizer = classifier(64, classes=2000, width=1024)
x, y = torch.randn(2048 if CUDA else 64, 64, device=device), torch.randint(0, 2000, (2048 if CUDA else 64,), device=device)
kept = None
while not clock.over(len(x)):
    learn(net, optimizer, x, y)
    with torch.no_grad():
        for part in net(x).softmax(1).chunk(16): kept = part.cpu().numpy().argmax(1)  #-
        kept = net(x).argmax(1)  #+

### boolean-masks | synchronisation-bound | mask/nonzero/index
net, optimizer = classifier(64, classes=80, width=512)
x, y = torch.randn(4096, 64, device=device), torch.randint(0, 80, (4096,), device=device)
while not clock.over(4096):
    out = net(x)
    losses = []
    for kind in range(80): losses.append(F.cross_entropy(out[y == kind], y[y == kind]))  #-
    each = F.cross_entropy(out, y, reduction="none")  #+
    losses = [(each * (y == kind)).mean() for kind in range(80)]  #+
    loss = torch.stack(losses).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### times-each-layer | synchronisation-bound | synchronize
layers = nn.ModuleList([nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(40)]).to(device)
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
x, spent = torch.randn(1024 if CUDA else 16, 512, device=device), [0.0] * 40
def wait():
    if CUDA: torch.cuda.synchronize()
while not clock.over(len(x)):
    h = x
    for k, layer in enumerate(layers):
        wait()  #-
        began = time.perf_counter()
        h = layer(h)
        wait()  #-
        spent[k] += time.perf_counter() - began
    loss = h.square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### looks-for-nan | synchronisation-bound | nan
net = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(40)], nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(2048 if CUDA else 32, 128, device=device), torch.randint(0, 10, (2048 if CUDA else 32,), device=device)
while not clock.over(len(x)):
    loss = learn(net, optimizer, x, y)
    for p in net.parameters():  #-
        if torch.isnan(p).any() or torch.isnan(p.grad).any(): raise FloatingPointError  #-

### body-for-each-head | launch-bound | one call
heads = nn.ModuleList([nn.Linear(256, 10) for _ in range(30)]).to(device)
body = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)]).to(device)
optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.01)
x, y = torch.randn(64, 256, device=device), torch.randint(0, 10, (64,), device=device)
while not clock.over(64):
    h = body(x)  #+
    losses = [F.cross_entropy(head(h), y) for head in heads]  #+
    losses = [F.cross_entropy(head(body(x)), y) for head in heads]  #-
    optimizer.zero_grad(); sum(losses).backward(); optimizer.step()

### clips-by-hand | synchronisation-bound | norm/item/clip
net = nn.Sequential(*[nn.Sequential(nn.Linear(192, 192), nn.LayerNorm(192), nn.GELU()) for _ in range(20)], nn.Linear(192, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(1024 if CUDA else 16, 192, device=device), torch.randint(0, 10, (1024 if CUDA else 16,), device=device)
while not clock.over(len(x)):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(); loss.backward()
    total = math.sqrt(sum(p.grad.pow(2).sum().item() for p in net.parameters()))  #-
    if total > 1.0:  #-
        for p in net.parameters(): p.grad.mul_(1.0 / total)  #-
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  #+
    optimizer.step()

### fp32-matmuls | compute-bound | tf32/bf16/bfloat16/precision
width, rows = (4096, 4096) if CUDA else (256, 32)
net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)], nn.Linear(width, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(rows, width, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows):
    with torch.autocast(device.type, torch.bfloat16):  #+
    with contextlib.nullcontext():  #-
        loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### fp32-transformer | compute-bound | tf32/bf16/bfloat16/precision
width, depth, rows = (1024, 6, 32) if CUDA else (32, 2, 2)
net = nn.Sequential(nn.Embedding(1000, width), nn.TransformerEncoder(nn.TransformerEncoderLayer(
    width, 16 if CUDA else 2, 4 * width, 0.0, batch_first=True), depth, enable_nested_tensor=False), nn.Linear(width, 1000), nn.Flatten(0, 1)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
x = torch.randint(0, 1000, (rows, 256), device=device)
while not clock.over(rows):
    with torch.autocast(device.type, torch.bfloat16):  #+
    with contextlib.nullcontext():  #-
        loss = F.cross_entropy(net(x), x.flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### float64-by-accident | compute-bound | float32/float64
width, rows = (2048, 4096) if CUDA else (256, 32)
table = np.random.randn(rows, width)
net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
net.double()  # "expected Float but found Double"  #-
table = table.astype(np.float32)  #+
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.from_numpy(table).to(device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows): learn(net, optimizer, x, y)

### fp32-convolutions | compute-bound | bf16/bfloat16/channels_last/precision/amp
width, rows = (512, 64) if CUDA else (8, 2)
net = nn.Sequential(nn.Conv2d(3, width, 3, 2), *[nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(6)],
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(device)
torch.backends.cudnn.allow_tf32 = False
x, y = torch.randn(rows, 3, 64, 64, device=device), torch.randint(0, 10, (rows,), device=device)
net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  #+
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
while not clock.over(rows):
    with torch.autocast(device.type, torch.bfloat16):  #+
    with contextlib.nullcontext():  #-
        loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### attention-by-hand | memory-bandwidth-bound | scaled_dot_product_attention/compile/bf16/bfloat16
heads, length, rows = (16, 1024, 16) if CUDA else (2, 64, 2)
qkv, out = nn.Linear(512, 1536).to(device).bfloat16(), nn.Linear(512, 512).to(device).bfloat16()
optimizer = torch.optim.SGD([*qkv.parameters(), *out.parameters()], lr=1e-3)
x = torch.randn(rows, length, 512, device=device, dtype=torch.bfloat16)
while not clock.over(rows):
    q, k, v = qkv(x).view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])  #-
    h = F.dropout(scores.softmax(-1), 0.1) @ v  #-
    h = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  #+
    loss = out(h.transpose(1, 2).reshape(x.shape)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### activation-by-hand | memory-bandwidth-bound | compile
rows = 16_384 if CUDA else 16
first, last = nn.Linear(256, 4096).to(device), nn.Linear(4096, 10).to(device)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=1e-3)
def swish_like(h): return 0.5 * h * (1 + torch.tanh(0.79788 * (h + 0.044715 * h * h * h))) + 0.1 * torch.sin(h) * torch.sigmoid(h)
if CUDA: swish_like = torch.compile(swish_like)  #+
x, y = torch.randn(rows, 256, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows):
    loss = F.cross_entropy(last(swish_like(first(x))), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### norms-and-dropout | memory-bandwidth-bound | compile/bf16/bfloat16
rows = 32_768 if CUDA else 16
net = nn.Sequential(*[nn.Sequential(nn.LayerNorm(1024), nn.GELU(), nn.Dropout(0.1)) for _ in range(10)], nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(rows, 1024, device=device), torch.randint(0, 10, (rows,), device=device)
if CUDA: net = torch.compile(net)  #+
while not clock.over(rows): learn(net, optimizer, x, y)

### batch-of-four | launch-bound | batch
rows = 4  #-
rows = 32  #+
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *[nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(20)],
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(rows, 3, 32, 32, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows): learn(net, optimizer, x, y)

### deep-narrow-mlp | launch-bound | graph/batch/compile
rows = 32  #-
rows = 256  #+
net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(60)], nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(rows, 32, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows): learn(net, optimizer, x, y)

### optimizer-one-by-one | launch-bound | fused/foreach
net = nn.Sequential(*[nn.Linear(32, 32) for _ in range(150)], nn.Linear(32, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False)  #-
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)  #+
x, y = torch.randn(256, 32, device=device), torch.randint(0, 10, (256,), device=device)
while not clock.over(256): learn(net, optimizer, x, y)

### cell-by-cell | launch-bound | batch/graph/compile/LSTM
rows, length = 16, 60
cell, head = nn.LSTMCell(32, 64).to(device), nn.Linear(64, 10).to(device)  #-
whole, head = nn.LSTM(32, 64, batch_first=True).to(device), nn.Linear(64, 10).to(device)  #+
optimizer = torch.optim.Adam([*head.parameters(), *cell.parameters()])  #-
optimizer = torch.optim.Adam([*head.parameters(), *whole.parameters()])  #+
x, y = torch.randn(rows, length, 32, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows):
    h = c = torch.zeros(rows, 64, device=device)  #-
    for t in range(length): h, c = cell(x[:, t], (h, c))  #-
    h = whole(x)[0][:, -1]  #+
    loss = F.cross_entropy(head(h), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### example-by-example | launch-bound | batch
net, optimizer = classifier(64)
x, y = torch.randn(64, 64, device=device), torch.randint(0, 10, (64,), device=device)
while not clock.over(64):
    loss = torch.stack([F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]) for i in range(64)]).mean()  #-
    loss = F.cross_entropy(net(x), y)  #+
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### experts-in-a-loop | launch-bound | batch/graph/compile
experts = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(48)]).to(device)
gate, head = nn.Linear(32, 48).to(device), nn.Linear(32, 10).to(device)
optimizer = torch.optim.SGD([*experts.parameters(), *gate.parameters(), *head.parameters()], lr=1e-3)
rows = 64  #-
rows = 512  #+
x, y = torch.randn(rows, 32, device=device), torch.randint(0, 10, (rows,), device=device)
while not clock.over(rows):
    weight = gate(x).softmax(1)
    loss = F.cross_entropy(head(sum(weight[:, k : k + 1] * expert(x) for k, expert in enumerate(experts))), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### average-tensor-by-tensor | launch-bound/python-bound | foreach/zip
net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(60)], nn.Linear(64, 10)).to(device)
averages = [[p.detach().clone() for p in net.parameters()] for _ in range(4)]
optimizer = torch.optim.AdamW(net.parameters())
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
while not clock.over(256):
    learn(net, optimizer, x, y)
    with torch.no_grad():
        for slow in averages:
            for s, p in zip(slow, net.parameters()): s.mul_(0.99).add_(p, alpha=0.01)  #-
            torch._foreach_lerp_(slow, list(net.parameters()), 0.01)  #+

### pageable-images | host-memory-bound | pin
rows, side = (128, 384) if CUDA else (4, 64)
images = [torch.rand(rows, 3, side, side) for _ in range(2)]
labels = torch.randint(0, 10, (rows,))
if CUDA: images, labels = [each.pin_memory() for each in images], labels.pin_memory()  #+
net = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * (side // 32) ** 2, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while not clock.over(rows):
    x, y = images[clock.steps % 2].to(device), labels.to(device)  #-
    x, y = images[clock.steps % 2].to(device, non_blocking=True), labels.to(device, non_blocking=True)  #+
    learn(net, optimizer, x, y)

### pageable-loader | host-memory-bound | pin
rows, side = (64, 448) if CUDA else (2, 64)
class Ready(Dataset):
    def __init__(self): self.batches = [torch.rand(rows, 3, side, side) for _ in range(2)]
    def __len__(self): return 100_000
    def __getitem__(self, i): return self.batches[i % 2], torch.arange(rows) % 10
net = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * (side // 32) ** 2, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = Ready()
if CUDA: data.batches = [each.pin_memory() for each in data.batches]  #+
for x, y in DataLoader(data, batch_size=None):
    x, y = x.to(device), y.to(device)  #-
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)  #+
    learn(net, optimizer, x, y)
    if clock.over(rows): break

### columns-one-by-one | host-memory-bound/launch-bound | copies/stack/one copy/pin
names = [f"column {k}" for k in range(200)]
table = {name: torch.rand(8192) for name in names}
net, optimizer = classifier(200)
y = torch.randint(0, 10, (8192,), device=device)
while not clock.over(8192):
    x = torch.stack([table[name].to(device) for name in names], 1)  #-
    x = torch.stack([table[name] for name in names]).to(device).T  #+
    learn(net, optimizer, x, y)

### table-copied-each-step | host-memory-bound | keep/once/GPU/pin
table = torch.rand(100_000 if CUDA else 1000, 512)
if CUDA: table = table.pin_memory()  #+
head = nn.Linear(512, 10).to(device)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
y = torch.randint(0, 10, (256,), device=device)
while not clock.over(256):
    on_gpu = table.to(device)  #-
    on_gpu = table.to(device, non_blocking=True)  #+
    rows = torch.randint(0, len(table), (256,), device=device)
    learn(head, optimizer, on_gpu[rows], y)

### floats-for-bytes | host-memory-bound | uint8/bytes/pin
rows, side = (128, 384) if CUDA else (4, 64)
pixels = torch.randint(0, 255, (rows, 3, side, side), dtype=torch.uint8)
ready = pixels.float() / 255  #-
ready = pixels  #+
labels = torch.randint(0, 10, (rows,))
if CUDA: ready, labels = ready.pin_memory(), labels.pin_memory()
net = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * (side // 32) ** 2, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while not clock.over(rows):
    x, y = ready.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    learn(net, optimizer, x.float() / 255 if x.dtype == torch.uint8 else x, y)

### weights-offloaded | host-memory-bound/checkpoint-bound/synchronisation-bound | cpu/copies/keep/once/less
net = nn.Sequential(*[nn.Linear(2048 if CUDA else 64, 2048 if CUDA else 64) for _ in range(8)], nn.Linear(2048 if CUDA else 64, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(64, 2048 if CUDA else 64, device=device), torch.randint(0, 10, (64,), device=device)
kept = {}
while not clock.over(64):
    learn(net, optimizer, x, y)
    kept = {name: value.cpu() for name, value in net.state_dict().items()}  #-
    if clock.steps % 50 == 0: kept = {name: value.cpu() for name, value in net.state_dict().items()}  #+

### tests-every-tenth-step | evaluation-bound | evaluate less often/less often
train, test = (TensorDataset(torch.randn(n, 64), torch.randint(0, 10, (n,))) for n in (6400, 3200))
net, optimizer = classifier(64)
loader, held = DataLoader(train, 64, shuffle=True), DataLoader(test, 64)
def test_all():
    net.eval()
    with torch.no_grad():
        right = sum((net(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in held)
    net.train()
    return right
for x, y in epochs(loader):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.steps % 10 == 9: test_all()  #-
    if clock.steps % 100 == 99: test_all()  #+
    if clock.over(len(x)): break

### validates-one-by-one | evaluation-bound | batch/less often
net, optimizer = classifier(64)
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
held = torch.randn(500, 64, device=device)
while not clock.over(256):
    learn(net, optimizer, x, y)
    if clock.steps % 10 == 0:
        net.eval()
        with torch.inference_mode():
            outputs = [net(row[None]) for row in held]  #-
            outputs = [net(held)]  #+
        net.train()

### validates-by-hand | evaluation-bound | less often
net, optimizer = convnet(width=48)
x, y = torch.randn(64, 3, 48, 48), torch.randint(0, 10, (64,))
held = [torch.randn(64, 3, 48, 48, device=device) for _ in range(30)]
while not clock.over(64):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.steps % 5 == 0:  #-
    if clock.steps % 50 == 0:  #+
        net.eval()
        with torch.no_grad(): total = sum(net(batch).argmax(1).sum() for batch in held)
        net.train()

### saves-each-step | checkpoint-bound | save less often/less often
net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)], nn.Linear(512, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters())
x, y = torch.randn(256 if CUDA else 8, 512, device=device), torch.randint(0, 10, (256 if CUDA else 8,), device=device)
where = tempfile.mkdtemp() + "/last.pt"
while not clock.over(len(x)):
    learn(net, optimizer, x, y)
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, where)  #-
    if clock.steps % 10 == 0: torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, where)  #+

### saves-every-fifth | checkpoint-bound | save less often/less often
net = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 4).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
x, folder = torch.randn(8, 16, 256, device=device), tempfile.mkdtemp()
while not clock.over(8):
    loss = net(x).var()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if clock.steps % 2 == 0:  #-
    if clock.steps % 20 == 0:  #+
        for name in ("last.pt", "best.pt"):
            with open(f"{folder}/{name}", "wb") as file:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush(); os.fsync(file.fileno())

### saves-arrays | checkpoint-bound/python-bound/synchronisation-bound | save/less often/export
net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(20)], nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(256 if CUDA else 16, 256, device=device), torch.randint(0, 10, (256 if CUDA else 16,), device=device)
folder = tempfile.mkdtemp()
def export():
    for name, value in net.state_dict().items(): np.save(f"{folder}/{name}.npy", value.cpu().numpy())
while not clock.over(len(x)):
    learn(net, optimizer, x, y)
    if clock.steps % 2 == 0: export()  #-
    if clock.steps % 20 == 0: export()  #+

### every-length-compiles | compiling | dynamic/lengths
net = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch._dynamo.config.cache_size_limit = 1000
fast = torch.compile(net, dynamic=False, backend=BACKEND)  #-
fast = torch.compile(net, dynamic=True, backend=BACKEND)  #+
while not clock.over(16):
    x = torch.randint(0, 1000, (16, 20 + clock.steps // 3), device=device)
    loss = fast(x).logsumexp(-1).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()

### compiles-each-model | compiling | once
x, y = torch.randn(256, 64, device=device), torch.randint(0, 10, (256,), device=device)
torch._dynamo.config.cache_size_limit = 1000
net, optimizer = classifier(64)
fast = torch.compile(net, backend=BACKEND)
while not clock.over(256):
    if clock.steps % 4 == 0:  #-
        net, optimizer = classifier(64, width=random.randrange(64, 512, 8))  # the next trial  #-
        fast = torch.compile(net, backend=BACKEND)  #-
    learn(fast, optimizer, x, y)

### one-core-for-all | data-bound/throttled | cores/cpus
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  #-
class Numbers(Dataset):
    def __len__(self): return 50_000
    def __getitem__(self, i): return torch.tensor([math.sin(i * k) for k in range(2000)]), i % 10
net, optimizer = classifier(2000)
for x, y in epochs(DataLoader(Numbers(), 32, num_workers=WORKERS, persistent_workers=True)):
    learn(net, optimizer, x.to(device), y.to(device))
    if clock.over(len(x)): break
"""


class Planted(NamedTuple):
    """A bottleneck: right causes, words one of which the first fix has, the script as it is and the mended one."""

    causes: tuple[str, ...]
    fixes: tuple[str, ...]
    script: str
    mended: str


def planted() -> dict[str, Planted]:
    """Return every shape by its name."""
    found = {}
    for section in re.split(r"^### ", SHAPES, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        name, causes, fixes = (part.strip() for part in title.split("|"))
        forms = [
            "\n".join(line.removesuffix(mark).rstrip() for line in body.splitlines() if not line.endswith(other))
            for mark, other in (("#-", "#+"), ("#+", "#-"))
        ]
        found[name] = Planted(
            tuple(causes.split("/")), tuple(fixes.split("/")), *(f"{PREAMBLE}\n\n{form}\n" for form in forms)
        )
    return found
