"""Steps per second with and without a sampler beside: windows in turn, so that clocks and neighbours hit both alike.

    python trained_beside_sampler.py WINDOWS WINDOW_S FLAG_FILE

It is the child of sampler_overhead.py.

The sampler reads while FLAG_FILE exists. Prints {kind: {"off": [steps/s], "on": [steps/s], "groups": [[start, end]]}};
each "on" stands between two "off", and groups are the times of ten steps each while it was on (CLOCK_MONOTONIC).
"""

import json
import sys
import time
from pathlib import Path

import torch

windows, window_s, flag = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
torch.set_num_threads(1)


def small_network():
    """(model, update): a network whose step is a chain of some eighty small kernels.

    ``update`` is plain gradient descent: torch's optimizers import torch._dynamo at their first step, 5 s with a cold
    disk.
    """
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(128, 128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)).to(device)
    parameters = list(model.parameters())

    def update():
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=1e-3)  # type: ignore[arg-type]
                parameter.grad = None

    return model, update


model, update = small_network()
batch = torch.randn(64, 128, device=device)
big = torch.randn(*((8192, 8192) if cuda else (256, 256)), device=device, dtype=torch.bfloat16)


def small_step():
    model(batch).square().mean().backward()
    update()


def matmul():
    torch.mm(big, big)


def rate(step, seconds, groups):
    start = begun = time.monotonic()
    steps = 0
    while begun < start + seconds:
        for _ in range(10):
            step()
        if cuda:
            torch.cuda.synchronize()
        ended = time.monotonic()
        groups.append((begun, ended))
        steps, begun = steps + 10, ended
    return steps / (begun - start)


result = {}
for step in (small_step, matmul):
    rate(step, 1.0, [])
    result[step.__name__] = {"off": [rate(step, window_s, [])], "on": [], "groups": []}
    for _ in range(windows):
        for kind in ("on", "off"):
            if kind == "on":
                flag.touch()
            time.sleep(0.1)
            groups = result[step.__name__]["groups"] if kind == "on" else []
            result[step.__name__][kind].append(rate(step, window_s, groups))
            flag.unlink(missing_ok=True)
print(json.dumps(result))
