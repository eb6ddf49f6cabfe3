"""What the scripts bound on purpose share: a device, a clock, and sizes that a CPU can try too."""

import sys
import time

import torch

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def until_done(step, sync_every=50):
    """Call ``step`` for SECONDS; wait for the GPU now and then, so that launches cannot run far ahead."""
    torch.zeros(1, device=DEVICE)
    end = time.monotonic() + SECONDS
    steps = 0
    while time.monotonic() < end:
        step()
        steps += 1
        if CUDA and steps % sync_every == 0:
            torch.cuda.synchronize()
    if CUDA:
        torch.cuda.synchronize()
    print(f"{steps} steps")


def small_network():
    """(model, update): a network whose step is a chain of some eighty small kernels.

    ``update`` is plain gradient descent: torch's optimizers import torch._dynamo at their first step, 5 s with a cold
    disk.
    """
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(128, 128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)).to(DEVICE)
    parameters = list(model.parameters())

    def update():
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=1e-3)
                parameter.grad = None

    return model, update
