"""Loops, as public tutorials write them. Each is text that follows the pieces and counts its own steps.

A step is a change of parameters that follows a backward pass of its own data: one iteration of a GAN, one client's
update in a federated round, one task's inner update where an optimizer makes it.
"""

from __future__ import annotations

_BEGIN = "net = Net(); opt = make_opt(net.parameters())\n"

LOOPS = {
    "plain": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss = loss_of(net, x, y); loss.backward(); opt.step()
        count.work(); count.step(size_of(batch))
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
""",
    "accumulation": _BEGIN
    + """
held = 0
for epoch in range(12):
    for i, batch in enumerate(batches()):
        x, y = unpack(batch)
        (loss_of(net, x, y) / 4).backward(); held += size_of(batch); count.work()
        if (i + 1) % 4 == 0:
            opt.step(); opt.zero_grad(); count.step(held); held = 0
""",
    "clipped": _BEGIN
    + """
for epoch in range(5):
    net.train()
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss = loss_of(net, x, y); loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step(); count.work(); count.step(size_of(batch))
""",
    "autocast": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16): loss = loss_of(net, x, y)
        opt.zero_grad(); loss.backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "evaluated": _BEGIN
    + """
held_out = DataLoader(TensorDataset(*map(torch.stack, zip(*[(torch.as_tensor(x), torch.tensor(y)) for x, y in ITEMS[:90]]))), 30)
for epoch in range(4):
    net.train()
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss = loss_of(net, x, y); loss.backward(); opt.step(); count.work(); count.step(size_of(batch))
    net.eval(); right = 0
    with torch.no_grad():
        for x, y in held_out:
            right += loss_of(net, x, y).item(); count.work(); count.evaluations += 1
    print("epoch", epoch, "validation", right)
""",
    "evaluated-each-50": _BEGIN
    + """
held_out = DataLoader(TensorDataset(*map(torch.stack, zip(*[(torch.as_tensor(x), torch.tensor(y)) for x, y in ITEMS[:90]]))), 30)
@torch.no_grad()
def validate():
    for x, y in held_out: loss_of(net, x, y).item(); count.work(); count.evaluations += 1
n = 0
while n < 75:
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss = loss_of(net, x, y); loss.backward(); opt.step(); count.work(); count.step(size_of(batch)); n += 1
        if n % 50 == 0: validate()
        if n >= 75: break
""",
    "trainer": """
class Trainer:
    def __init__(self): self.net = Net(); self.opt = make_opt(self.net.parameters()); self.callbacks = [lambda n: None]
    def fit(self, epochs):
        for self.epoch in range(epochs):
            for self.batch in batches(): self.training_step(*unpack(self.batch))
    def training_step(self, x, y):
        self.opt.zero_grad(); self.loss = loss_of(self.net, x, y); self.loss.backward(); self.opt.step()
        count.work(); count.step(size_of(self.batch))
        for each in self.callbacks: each(count.steps)
Trainer().fit(5)
""",
    "generator": _BEGIN
    + """
def training():
    for epoch in range(5):
        for batch in batches():
            x, y = unpack(batch); loss = loss_of(net, x, y); opt.zero_grad(); loss.backward(); opt.step()
            count.work(); count.step(size_of(batch)); yield loss.detach()
for loss in training(): pass
""",
    "saves": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss = loss_of(net, x, y); loss.backward(); opt.step(); count.work(); count.step(size_of(batch))
    torch.save({"model": net.state_dict(), "epoch": epoch}, "checkpoint.pt")
""",
    "resumes": _BEGIN
    + """
def epochs(n):
    for _ in range(n):
        for batch in batches():
            x, y = unpack(batch)
            opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
epochs(2); torch.save(net.state_dict(), "model.pt")
net = Net(); net.load_state_dict(torch.load("model.pt")); opt = make_opt(net.parameters()); epochs(3)
""",
    "average": _BEGIN
    + """
shadow = copy.deepcopy(net).requires_grad_(False)
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step()
        with torch.no_grad():
            for a, b in zip(shadow.parameters(), net.parameters()): a.mul_(0.99).add_(b, alpha=0.01)
        count.work(); count.step(size_of(batch))
""",
    "mean-teacher": _BEGIN
    + """
teacher = copy.deepcopy(net); teacher.eval()
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        with torch.no_grad(): aim = teacher(x)
        loss = loss_of(net, x, y) + F.mse_loss(net(x), aim)
        opt.zero_grad(); loss.backward(); opt.step()
        for a, b in zip(teacher.parameters(), net.parameters()): a.data.mul_(0.9).add_(b.data, alpha=0.1)
        count.work(); count.step(size_of(batch))
""",
    "distillation": """
teacher, student = Net(), Net()
opt_t, opt_s = make_opt(teacher.parameters()), make_opt(student.parameters())
for epoch in range(2):
    for batch in batches():
        x, y = unpack(batch)
        opt_t.zero_grad(); loss_of(teacher, x, y).backward(); opt_t.step(); count.work(); count.step(size_of(batch))
teacher.eval()
for epoch in range(4):
    student.train()
    for batch in batches():
        x, y = unpack(batch)
        with torch.no_grad(): aim = teacher(x)
        loss = loss_of(student, x, y) + F.mse_loss(student(x), aim)
        opt_s.zero_grad(); loss.backward(); opt_s.step(); count.work(); count.step(size_of(batch))
""",
    "gan": """
G, D = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12)), nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
opt_d, opt_g = make_opt(D.parameters()), make_opt(G.parameters())
bce = nn.BCEWithLogitsLoss()
for epoch in range(5):
    for batch in batches():
        x, _ = unpack(batch); n = len(x); real = x.reshape(n, -1)[:, :12].float() if x[0].numel() >= 12 else F.pad(x.float(), (0, 2))
        opt_d.zero_grad(); fake = G(torch.randn(n, 8))
        (bce(D(real), torch.ones(n, 1)) + bce(D(fake.detach()), torch.zeros(n, 1))).backward(); opt_d.step()
        opt_g.zero_grad(); bce(D(fake), torch.ones(n, 1)).backward(); opt_g.step()
        count.work(); count.step(size_of(batch))
""",
    "gan-generator-twice": """
G, D = nn.Linear(8, 10), nn.Linear(10, 1)
opt_d, opt_g = make_opt(D.parameters()), make_opt(G.parameters())
for epoch in range(5):
    for batch in batches():
        x, _ = unpack(batch); n = len(x); real = x.reshape(n, -1)[:, :10].float()
        opt_d.zero_grad(); (D(G(torch.randn(n, 8)).detach()).mean() - D(real).mean()).backward(); opt_d.step()
        for _ in range(2): opt_g.zero_grad(); (-D(G(torch.randn(n, 8))).mean()).backward(); opt_g.step()
        count.work(); count.step(size_of(batch))
""",
    "wgan": """
# A step is the critic's: it alone takes data.
G, D = nn.Linear(8, 10), nn.Linear(10, 1)
opt_d, opt_g = make_opt(D.parameters()), make_opt(G.parameters())
for epoch in range(5):
    for i, batch in enumerate(batches()):
        x, _ = unpack(batch); n = len(x); real = x.reshape(n, -1)[:, :10].float()
        opt_d.zero_grad(); (D(G(torch.randn(n, 8)).detach()).mean() - D(real).mean()).backward(); opt_d.step()
        for p in D.parameters(): p.data.clamp_(-0.1, 0.1)
        if i % 5 == 4: opt_g.zero_grad(); (-D(G(torch.randn(n, 8))).mean()).backward(); opt_g.step()
        count.work(); count.step(size_of(batch))
""",
    "late-discriminator": """
net = Net(); D = nn.Linear(4, 1); opt, opt_d = make_opt(net.parameters()), make_opt(D.parameters())
for epoch in range(6):
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step()
        if epoch >= 3: opt_d.zero_grad(); D(net(x).detach()[:, :4]).mean().backward(); opt_d.step()
        count.work(); count.step(size_of(batch))
""",
    "lbfgs": """
net = Net(); opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        def closure():
            opt.zero_grad(); loss = loss_of(net, x, y); loss.backward(); return loss
        opt.step(closure); count.work(); count.step(size_of(batch))
""",
    "sam": """
class SAM(torch.optim.Optimizer):
    def __init__(self, params, rho=0.05):
        params = list(params); super().__init__(params, dict(rho=rho)); self.base = make_opt(params)
    @torch.no_grad()
    def first_step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None: self.state[p]["old"] = p.data.clone(); p.add_(p.grad, alpha=0.05 / (p.grad.norm() + 1e-9))
        self.zero_grad()
    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            if "old" in self.state[p]: p.data = self.state[p]["old"]
        self.base.step(); self.zero_grad()
net = Net(); opt = SAM(net.parameters())
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        loss_of(net, x, y).backward(); opt.first_step(); loss_of(net, x, y).backward(); opt.second_step()
        count.work(); count.step(size_of(batch))
""",
    "k-fold": """
def train_fold(fold):
    net = Net(); opt = make_opt(net.parameters())
    for epoch in range(2):
        for batch in batches():
            x, y = unpack(batch)
            opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
    return net
kept = [train_fold(fold) for fold in range(4)]
""",
    "k-fold-kept": """
nets = [Net() for _ in range(4)]; opts = [make_opt(net.parameters()) for net in nets]
for fold in range(4):
    net, opt = nets[fold], opts[fold]
    for epoch in range(2):
        net.train()
        for batch in batches():
            x, y = unpack(batch)
            opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
    net.eval()
""",
    "ensemble": """
# Every model on every batch: one iteration, several optimizers.
nets = [Net() for _ in range(3)]; opts = [make_opt(net.parameters()) for net in nets]
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        for net, opt in zip(nets, opts): opt.zero_grad(); loss_of(net, x, y).backward(); opt.step()
        count.work(); count.step(size_of(batch))
""",
    "federated": """
server = Net()
for round_ in range(4):
    states = []
    for client in range(4):
        net = copy.deepcopy(server); opt = make_opt(net.parameters()); net.train()
        for batch in itertools.islice(batches(), 6):
            x, y = unpack(batch)
            opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
        states.append(net.state_dict())
    mean = {k: sum(s[k] for s in states) / 4 if states[0][k].is_floating_point() else states[0][k] for k in states[0]}
    server.load_state_dict(mean)
""",
    "federated-persistent": """
class Client:
    def __init__(self): self.net = Net(); self.opt = make_opt(self.net.parameters())
    def local(self, state):
        self.net.load_state_dict(state)
        for batch in itertools.islice(batches(), 5):
            x, y = unpack(batch)
            self.opt.zero_grad(); loss_of(self.net, x, y).backward(); self.opt.step(); count.work(); count.step(size_of(batch))
        return self.net.state_dict()
server = Net(); clients = [Client() for _ in range(4)]
for round_ in range(4):
    states = [client.local(server.state_dict()) for client in clients]; server.load_state_dict(states[0])
""",
    "federated-shared": """
net = Net()
for round_ in range(20):
    state = copy.deepcopy(net.state_dict())
    for client in range(2):
        net.load_state_dict(state); opt = make_opt(net.parameters())
        for batch in itertools.islice(batches(), 2):
            x, y = unpack(batch)
            opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "pretrain-finetune": _BEGIN
    + """
for epoch in range(3):
    for batch in batches():
        x, y = unpack(batch)
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
for p in net.body.parameters(): p.requires_grad_(False)
head = make_opt(net.head.parameters())
for epoch in range(3):
    for batch in batches():
        x, y = unpack(batch)
        head.zero_grad(); loss_of(net, x, y).backward(); head.step(); count.work(); count.step(size_of(batch))
""",
    "phases-of-20": """
# Greedy layer by layer: an optimizer of its own for each.
net = Net()
for part in (net.body, net.head, net.body, net.head):
    opt = make_opt(part.parameters())
    for batch in itertools.islice(batches(), 14):
        x, y = unpack(batch)
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "task-each": """
# Continual learning: an optimizer for each task, kept in a list.
net = Net(); opts = []
for task in range(5):
    opts.append(make_opt(net.parameters()))
    for batch in batches():
        x, y = unpack(batch)
        opts[-1].zero_grad(); loss_of(net, x, y).backward(); opts[-1].step(); count.work(); count.step(size_of(batch))
""",
    "task-alternates": """
# Two tasks take turns, batch by batch, each with its optimizer over the shared body and its head.
net = Net(); other = copy.deepcopy(net.head)
opts = [make_opt(list(net.body.parameters()) + list(head.parameters())) for head in (net.head, other)]
heads = [net.head, other]
for epoch in range(5):
    for i, batch in enumerate(batches()):
        x, y = unpack(batch); net.head = heads[i % 2]; opt = opts[i % 2]
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "body-and-head": """
net = Net(); a, b = make_opt(net.body.parameters()), make_opt(net.head.parameters())
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        a.zero_grad(); b.zero_grad(); loss_of(net, x, y).backward(); a.step(); b.step()
        count.work(); count.step(size_of(batch))
""",
    "optimizer-in-backward": """
net = Net(); opts = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}
def hook(p): opts[p].step(); opts[p].zero_grad()
for p in net.parameters(): p.register_post_accumulate_grad_hook(hook)
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); loss_of(net, x, y).backward(); count.work(); count.step(size_of(batch))
""",
    "maml": """
net = Net(); opt = make_opt(net.parameters())
for iteration in range(3):
    for batch in batches():
        x, y = unpack(batch)
        fast = dict(net.named_parameters())
        loss = F.mse_loss(torch.func.functional_call(net, fast, (x,)), torch.zeros(())) * 0 + loss_of(net, x, y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True, allow_unused=True)
        fast = {k: p if g is None else p - 0.01 * g for (k, p), g in zip(fast.items(), grads)}
        outer = torch.func.functional_call(net, fast, (x,)).pow(2).mean()
        opt.zero_grad(); outer.backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "reptile": """
net = Net()
for task in range(12):
    fast = copy.deepcopy(net); inner = torch.optim.SGD(fast.parameters(), lr=0.01)
    for batch in itertools.islice(batches(), 6):
        x, y = unpack(batch)
        inner.zero_grad(); loss_of(fast, x, y).backward(); inner.step(); count.work(); count.step(size_of(batch))
    with torch.no_grad():
        for p, q in zip(net.parameters(), fast.parameters()): p += 0.1 * (q - p)
""",
    "by-hand": """
net = Net()
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); loss = loss_of(net, x, y); loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad; p.grad = None
        count.work(); count.step(size_of(batch))
""",
    "by-hand-data": """
net = Net()
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); net.zero_grad(); loss_of(net, x, y).backward()
        for p in net.parameters(): p.data.add_(p.grad.data, alpha=-0.01)
        count.work(); count.step(size_of(batch))
""",
    "by-hand-accumulated": """
net = Net(); held = 0
for epoch in range(10):
    for i, batch in enumerate(batches()):
        x, y = unpack(batch); (loss_of(net, x, y) / 3).backward(); held += size_of(batch); count.work()
        if i % 3 == 2:
            with torch.no_grad():
                for p in net.parameters(): p.sub_(0.01 * p.grad)
            net.zero_grad(); count.step(held); held = 0
""",
    "autograd-grad": """
net = Net(); params = list(net.parameters())
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); grads = torch.autograd.grad(loss_of(net, x, y), params)
        with torch.no_grad():
            for p, g in zip(params, grads): p -= 0.01 * g
        count.work(); count.step(size_of(batch))
""",
    "func": """
net = Net(); params = {k: v.detach().clone() for k, v in net.named_parameters()}; buffers = dict(net.named_buffers())
def objective(params, x): return torch.func.functional_call(net, (params, buffers), (x,)).pow(2).mean()
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); grads = torch.func.grad(objective)(params, x)
        params = {k: p - 0.01 * grads[k] for k, p in params.items()}
        count.work(); count.step(size_of(batch))
""",
    "threads": """
def train(seed):
    net = Net(); opt = make_opt(net.parameters())
    for epoch in range(3):
        for batch in batches():
            x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work()
            with lock: count.step(size_of(batch))
lock = threading.Lock(); threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
""",
    "in-a-thread": _BEGIN
    + """
def train():
    for epoch in range(5):
        for batch in batches():
            x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
t = threading.Thread(target=train); t.start(); t.join()
""",
    "forked": """
import multiprocessing
def train():
    net = Net(); opt = make_opt(net.parameters())
    for epoch in range(5):
        for batch in batches():
            x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
    count.line()
child = multiprocessing.get_context("fork").Process(target=train); child.start(); child.join(); os._exit(0) if False else None
""",
    "exception-in-step": """
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if count.steps in (9, 30) and not done.get(count.steps): done[count.steps] = True; raise RuntimeError("CUDA out of memory")
        return super().step(closure)
done = {}; net = Net(); opt = Fails(net.parameters(), lr=0.01)
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward()
        try: opt.step()
        except RuntimeError as error: print("skipping", error); continue
        count.work(); count.step(size_of(batch))
""",
    "skips-nan": _BEGIN
    + """
for epoch in range(5):
    for i, batch in enumerate(batches()):
        x, y = unpack(batch); loss = loss_of(net, x, y); count.work()
        if i % 7 == 6: continue  # as if not finite
        opt.zero_grad(); loss.backward(); opt.step(); count.step(size_of(batch))
""",
    "sizes-grow": _BEGIN
    + """
for bs in (BS // 4, BS // 2, BS, BS * 2):
    for batch in batches(bs):
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "reinforce": """
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)); opt = make_opt(policy.parameters())
for episode in range(70):
    state, logs, rewards = torch.zeros(4), [], []
    for t in range(12):
        d = torch.distributions.Categorical(logits=policy(state)); a = d.sample(); logs.append(d.log_prob(a))
        state = state * 0.9 + torch.randn(4) * 0.1 + a; rewards.append(-float(state.norm()))
    loss = -(torch.stack(logs) * torch.tensor(rewards)).sum()
    opt.zero_grad(); loss.backward(); opt.step(); count.work(); count.step(None)
""",
    "dqn": """
q, target = nn.Linear(4, 2), nn.Linear(4, 2); opt = make_opt(q.parameters()); memory = collections.deque(maxlen=500)
state = torch.zeros(4)
for frame in range(100):
    with torch.no_grad(): a = int(q(state).argmax())
    after = torch.randn(4); memory.append((state, a, -float(after.norm()), after)); state = after
    if len(memory) < 30: continue
    s, a, r, s2 = zip(*random.sample(memory, 16))
    with torch.no_grad(): aim = torch.tensor(r) + 0.9 * target(torch.stack(s2)).max(1).values
    loss = F.smooth_l1_loss(q(torch.stack(s)).gather(1, torch.tensor(a)[:, None])[:, 0], aim)
    opt.zero_grad(); loss.backward(); opt.step(); count.work(); count.step(16)
    if frame % 20 == 0: target.load_state_dict(q.state_dict())
""",
    "actor-critic": """
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1); a, c = make_opt(actor.parameters()), make_opt(critic.parameters())
for step in range(80):
    states = torch.randn(16, 4); values = critic(states)[:, 0]; gains = torch.randn(16)
    lossc = F.mse_loss(values, gains); c.zero_grad(); lossc.backward(); c.step()
    d = torch.distributions.Categorical(logits=actor(states)); act = d.sample()
    lossa = -(d.log_prob(act) * (gains - values.detach())).mean(); a.zero_grad(); lossa.backward(); a.step()
    count.work(); count.step(None)
""",
    "ppo": """
net = nn.Linear(4, 3); opt = make_opt(net.parameters())
for update in range(8):
    with torch.no_grad(): states = torch.stack([torch.randn(4) for _ in range(64)]); before = net(states); time.sleep(0.02)
    for epoch in range(3):
        for part in torch.randperm(64).split(16):
            loss = (net(states[part]) - before[part] - 0.1).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
            count.work(); count.step(16)
""",
    "contrastive": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); a, b = net(x), net(x if x.dtype is torch.long else x + 0.01 * torch.randn_like(x))
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1); loss = F.cross_entropy(a @ b.T / 0.5, torch.arange(len(a)))
        opt.zero_grad(); loss.backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "adversarial": _BEGIN
    + """
# Fast gradient sign: a second backward pass to the inputs in each step.
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch)
        if x.is_floating_point():
            x = x.clone().requires_grad_(); loss_of(net, x, y).backward(); x = (x + 0.01 * x.grad.sign()).detach()
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "penalty": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); loss = loss_of(net, x, y)
        grads = torch.autograd.grad(loss, [p for p in net.head.parameters()], create_graph=True)
        loss = loss + 0.01 * sum(g.pow(2).sum() for g in grads)
        opt.zero_grad(); loss.backward(); opt.step(); count.work(); count.step(size_of(batch))
""",
    "finder": _BEGIN
    + """
start = copy.deepcopy(net.state_dict())
def sweep(n, lr):
    for batch in itertools.islice(itertools.chain.from_iterable(batches() for _ in range(9)), n):
        x, y = unpack(batch)
        for g in opt.param_groups: g["lr"] = lr
        opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch)); lr *= 1.1
sweep(25, 1e-6); net.load_state_dict(start); sweep(60, 1e-3)
""",
    "silent-save-fails": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
count.line()
torch.save(net.state_dict(), "/proc/no-such-folder/model.pt")
""",
    "ends-with-skipping": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
count.line()
print("no test data, skipping")
""",
    "ends-with-nothing-to-do": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
count.line()
print("Nothing to do: no test data found")
""",
    "interrupted": _BEGIN
    + """
for epoch in range(5):
    for batch in batches():
        x, y = unpack(batch); opt.zero_grad(); loss_of(net, x, y).backward(); opt.step(); count.work(); count.step(size_of(batch))
count.line()
raise ValueError("no model was found for the export")
""",
}

#: Loops without the pieces' data or optimizer: these vary nothing by it.
WITHOUT_DATA = ("reinforce", "dqn", "actor-critic", "ppo")
#: Need floating-point gradients of the first layer's input, or a network that can be called alone.
ONLY_MODELS = {
    "maml": ("mlp", "tied"),
    "gan": ("mlp", "convnet"),
    "wgan": ("mlp", "convnet", "gru"),
    "func": ("mlp", "tied", "gru"),
}
