"""DistributedOptimizer and DistributedDataParallel: equal to the bit, or a known sum."""

import copy

import horovod.torch as hvd
import torch
from checks import passed, raises
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.set_num_threads(1)
STEPS = 6


class Net(nn.Module):
    """Several buckets of DDP's: the first holds a megabyte, this network two."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.wide = nn.Linear(8 * 36, 800)
        self.deep = nn.Linear(800, 400)
        self.last = nn.Linear(400, 5)

    def forward(self, images):
        hidden = torch.relu(self.norm(self.first(images))).flatten(1)
        return self.last(torch.relu(self.deep(torch.relu(self.wide(hidden)))))


def batches(count=STEPS):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        yield torch.randn(4, 1, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def loss_of(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def new(make=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)):
    torch.manual_seed(rank)  # each rank begins elsewhere, until the root's are everybody's
    net = Net()
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    return net, make(net.parameters())


def trained_by_ddp(make=None, clip=None, passes=1, hook=None):
    net, optimizer = new(*([make] if make else []))
    wrapped = DistributedDataParallel(net)
    if hook:
        wrapped.register_comm_hook(None, hook)
    losses = []
    for number, batch in enumerate(batches()):
        last = (number + 1) % passes == 0
        if number % passes == 0:
            optimizer.zero_grad()
        if last:
            loss = loss_of(wrapped, batch)
            loss.backward()
        else:
            with wrapped.no_sync():
                loss = loss_of(wrapped, batch)
                loss.backward()
        losses.append(loss.item())
        if last:
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    return losses, net


def trained_by_horovod(make=None, clip=None, passes=1, **options):
    net, optimizer = new(*([make] if make else []))
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=net.named_parameters(), backward_passes_per_step=passes, **options
    )
    losses = []
    for number, batch in enumerate(batches()):
        if number % passes == 0:
            optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        losses.append(loss.item())
        if (number + 1) % passes:
            continue
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return losses, net


def same(name, ddp, ours):
    assert ddp[0] == ours[0], (name, ddp[0], ours[0])
    for one, other in zip(ddp[1].parameters(), ours[1].parameters(), strict=True):
        assert torch.equal(one, other), name
    passed(name)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


plain = trained_by_ddp()
same("as DDP", plain, trained_by_horovod())
same("as DDP with Adam", trained_by_ddp(adam), trained_by_horovod(adam))
same("as DDP with clipping", trained_by_ddp(clip=0.1), trained_by_horovod(clip=0.1))
same("as DDP with accumulation", trained_by_ddp(passes=2), trained_by_horovod(passes=2))
if size == 2:
    halved = trained_by_horovod(compression=hvd.Compression.fp16)
    same("as DDP in half precision", trained_by_ddp(hook=fp16_compress_hook), halved)
    same("divided before and after", plain, trained_by_horovod(gradient_predivide_factor=2.0))


def one_gradient(**options):
    """Return the gradient of w in w·(rank + 1), after the ranks are done."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0), **options)
    (weight.sum() * (rank + 1)).backward()
    optimizer.synchronize()
    return weight.grad[0].item()


assert one_gradient(op=hvd.Sum) == size * (size + 1) / 2
assert abs(one_gradient() - (size + 1) / 2) < 1e-6
passed("sums")

# One parameter has a gradient on rank 0 alone, one nowhere: zeros stand for what is missing.
first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second, third], lr=1.0))
for _ in range(2):
    optimizer.zero_grad()
    (first.sum() + (second.sum() if rank == 0 else 0)).backward()
    optimizer.step()
assert torch.allclose(first, torch.full((2,), -1.0)) and torch.equal(third, torch.ones(2))
assert torch.allclose(second, torch.full((2,), 1 - 2 / size))
passed("unused parameters")


def embedded(**options):
    table = nn.Embedding(5, 2, sparse=True)
    nn.init.ones_(table.weight)
    head = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight, head], lr=1.0), **options)
    for _ in range(2):
        optimizer.zero_grad()
        (table(torch.tensor([rank, rank, 4])) + head).sum().backward()
        optimizer.step()
    return table.weight


wanted = torch.tensor([1 - 4 / size] * size + [1.0] * (4 - size) + [-1.0])
assert torch.allclose(embedded(sparse_as_dense=True)[:, 0], wanted)
raises(NotImplementedError, embedded, "sparse=False")
passed("sparse gradients")

net, sgd = new()
scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=net.named_parameters())
assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
loss_of(net, next(batches())).backward()
raises(AssertionError, optimizer.zero_grad, "on their way")
optimizer.step()
scheduler.step()
assert optimizer.param_groups[0]["lr"] == 0.05
loss_of(net, next(batches())).backward()
raises(AssertionError, lambda: loss_of(net, next(batches())).backward(), "backward_passes_per_step=1")
optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
optimizer.synchronize()
passed("what scripts do wrong")

late = nn.Parameter(torch.ones(2), requires_grad=False)
early = nn.Parameter(torch.ones(2))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([early, late], lr=1.0))
for step in range(4):
    late.requires_grad_(step >= 1)
    optimizer.zero_grad()
    ((early.sum() + (late.sum() if step >= 1 else 0)) * (rank + 1)).backward()
    optimizer.step()
assert torch.allclose(early - late, torch.full((2,), -(size + 1) / 2), atol=1e-5)
passed("a parameter that is unfrozen later")

# The root goes on from a checkpoint; the others have no state yet.
net, optimizer = new(lambda parameters: torch.optim.Adam(parameters, lr=0.5 if rank == 0 else 0.1))
if rank == 0:
    loss_of(net, next(batches())).backward()
    optimizer.step()
hvd.broadcast_parameters(list(net.named_parameters()), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
shown = hvd.allgather_object(
    {
        "lr": optimizer.param_groups[0]["lr"],
        "steps": [float(state["step"]) for state in optimizer.state.values()],
        "moments": sum(state["exp_avg"].double().abs().sum().item() for state in optimizer.state.values()),
    }
)
assert all(each == shown[0] for each in shown) and shown[0]["lr"] == 0.5 and len(shown[0]["steps"]) == 10
passed("state from the root")

raises(NotImplementedError, lambda: hvd.DistributedOptimizer(optimizer, groups=3), "groups=…")
raises(NotImplementedError, lambda: hvd.DistributedOptimizer(optimizer, op=hvd.Adasum), "hvd.Adasum")
raises(ValueError, lambda: hvd.broadcast_parameters(5, 0), "state_dict")
raises(ValueError, lambda: hvd.broadcast_optimizer_state(torch.optim.LBFGS([late]), 0), "LBFGS")
passed("refusals")

# One batch over all ranks in one process, and shares of it on each: the same network.
torch.manual_seed(7)
whole, shared = nn.BatchNorm2d(3), hvd.SyncBatchNorm(3)
images = torch.randn(4 * size, 3, 5, 5)
weights = torch.randn_like(images)
ours = images[rank * 4 : rank * 4 + 4].clone().requires_grad_()
everything = images.clone().requires_grad_()
(whole(everything) * weights).sum().backward()
output = shared(ours)
(output * weights[rank * 4 : rank * 4 + 4]).sum().backward()
assert torch.allclose(ours.grad, everything.grad[rank * 4 : rank * 4 + 4], atol=1e-5)
assert torch.allclose(shared.running_var, whole.running_var, atol=1e-6)
assert torch.allclose(shared.running_mean, whole.running_mean, atol=1e-6) and shared.num_batches_tracked == 1
whole.eval(), shared.eval()
assert torch.allclose(shared(images), whole(images), atol=1e-5)
passed("SyncBatchNorm")
