"""One rank of benchmarks/horovod_against_ddp.py: trains under DDP or under the stand-in for Horovod; one line of JSON.

horovod_rank.py ddp|hvd equal|speed STEPS      or      horovod_rank.py hvd operations 0
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

import torch
from torch import nn

way, what, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
gpu = torch.cuda.is_available()
kind = "cuda" if gpu else "cpu"
local_rank = int(os.environ["LOCAL_RANK"])
if gpu:
    torch.cuda.set_device(local_rank)
if way == "ddp":
    import torch.distributed as dist

    dist.init_process_group("nccl" if gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
else:
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()


def small() -> nn.Module:
    layers = [nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4608, 2000), nn.Linear(2000, 100))


def large() -> nn.Module:
    if not gpu:
        return small()
    from torchvision.models import resnet50

    return resnet50()


def wrapped(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if gpu else None), optimizer
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def equal() -> dict[str, object]:
    """Losses and parameters of all steps, as digests."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model = small().to(kind)
    net, optimizer = wrapped(model)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        images = torch.randn(16, 3, 16, 16, generator=generator).to(kind)
        labels = torch.randint(0, 100, (16,), generator=generator).to(kind)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    values = torch.stack(losses).cpu()
    weights = torch.cat([each.detach().flatten() for each in model.parameters()]).cpu()
    digests = {name: hashlib.sha256(each.numpy().tobytes()).hexdigest()[:16] for name, each in
               (("losses", values), ("weights", weights))}  # fmt: skip
    return {**digests, "first_loss": values[0].item(), "last_loss": values[-1].item()}


def speed() -> dict[str, object]:
    """Median time of a step, after ten."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    net, optimizer = wrapped(large().to(kind))
    side = 224 if gpu else 16
    images = torch.randn(64 if gpu else 4, 3, side, side, device=kind)
    labels = torch.randint(0, 100, (len(images),), device=kind)
    times: list[float] = []
    for _ in range(steps + 10):
        started = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    times = sorted(times[10:])
    return {"median_step_ms": 1e3 * times[len(times) // 2], "images_per_s": size * len(images) / times[len(times) // 2]}


def operations() -> dict[str, object]:
    """Each operation on tensors of the device, with what must come of it."""
    told: dict[str, object] = {"nccl_built": hvd.nccl_built()}

    def check(name: str, found: torch.Tensor, wanted: object) -> None:
        told[name] = bool(torch.equal(found.cpu(), torch.as_tensor(wanted, dtype=found.dtype))) or found.tolist()

    mine = torch.tensor([1.0, 2.0], device=kind) * (rank + 1)
    total = size * (size + 1) / 2
    check("allreduce", hvd.allreduce(mine, op=hvd.Sum), [total, 2 * total])
    check("allreduce of the host's", hvd.allreduce(torch.ones(1) * rank, op=hvd.Sum), [total - size])
    rows = torch.full((rank + 1, 2), float(rank), device=kind)
    wanted = [[float(each)] * 2 for each in range(size) for _ in range(each + 1)]
    check("allgather of unequal rows", hvd.allgather(rows), wanted)
    check("broadcast", hvd.broadcast(mine, root_rank=size - 1), [float(size), 2.0 * size])
    handle = hvd.allreduce_async(mine)
    check("allreduce_async", hvd.synchronize(handle), [total / size, 2 * total / size])
    told["objects"] = hvd.allgather_object(rank) == list(range(size))
    hvd.barrier()
    norm, whole = hvd.SyncBatchNorm(3).to(kind), nn.BatchNorm2d(3).to(kind)
    images = torch.randn(4 * size, 3, 5, 5, generator=torch.Generator().manual_seed(1)).to(kind)
    ours = norm(images[rank * 4 : rank * 4 + 4])
    told["SyncBatchNorm"] = bool(torch.allclose(ours, whole(images)[rank * 4 : rank * 4 + 4], atol=1e-4))
    return told


result = {"equal": equal, "speed": speed, "operations": operations}[what]()
line = {"way": way, "what": what, "rank": rank, "size": size, "device": kind, "torch": torch.__version__, **result}
print("RESULT " + json.dumps(line) + "\n", end="", flush=True)
if way == "ddp":
    dist.destroy_process_group()
