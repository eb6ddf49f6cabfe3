"""What the hook's always-on calls of a step cost, one by one: nanoseconds in a loop, and which of ours a step calls.

    python benchmarks/hook_calls.py

A loop keeps them in the CPU's caches; in a real step they cost two to five times as much (docs/decisions.md, 0036).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from seatrial.agent.hook import install

BODY = r"""
import collections, gc, statistics, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adadelta(net.parameters(), foreach=True)
batch = [torch.zeros(4, 8), torch.zeros(4)]
loader = DataLoader([0] * 4000, batch_size=1, collate_fn=lambda items: batch)
iterator = iter(loader)
def step():
    x, y = next(iterator)
    opt.zero_grad(); net(x).sum().backward(); opt.step()
for _ in range(200): step()
from seatrial_hook import measure_torch
measuring = measure_torch._BEGUN["torch"]
recorder, windows = measuring.recorder, measuring.windows
if windows.open: windows.spoil()
windows._due_s = recorder._line_due_s = float("inf")
for _ in range(100): step()
calls = collections.Counter()
def seen(frame, event, argument):
    if event == "call" and "/seatrial_hook_" in frame.f_code.co_filename:
        calls[frame.f_code.co_filename.rpartition("/")[2] + ":" + frame.f_code.co_name] += 1
sys.setprofile(seen)
for _ in range(100): step()
sys.setprofile(None)
print("calls of a step:", {name: count / 100 for name, count in calls.items()})
base = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
ours, theirs = vars(base)["__next__"], lambda iterator: batch
alone = measuring.loaders._next(theirs)
def ns(call, times=20000):
    best = []
    for _ in range(15):
        began = time.thread_time_ns()
        for _ in range(times): call()
        best.append((time.thread_time_ns() - began) / times)
    return min(best)
gc.disable()
nothing = ns(lambda: None)
def no_grad():
    with torch.no_grad(): pass
after = measuring.steps._after
found = {
    "a batch": ns(lambda: alone(iterator)) - ns(lambda: theirs(iterator)),
    "the end of a step": ns(lambda: after(opt, (), {})) - nothing,
}
on = ns(no_grad)
for name in ("__enter__", "__exit__"):
    setattr(torch.no_grad, name, vars(torch.no_grad)[name].__wrapped__)
found["entering and leaving no_grad"] = on - ns(no_grad)
print({name: round(value) for name, value in found.items()}, "ns; together", round(sum(found.values())))
"""


def main() -> int:
    """Run it beside the hook."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "SEATRIAL_EVENTS": f"{place}/events.jsonl"}
        env.pop("PYTHONPATH", None)
        install.install(f"{place}/hooks", env, None, measure_steps=True)
        script = Path(place, "steps.py")
        script.write_text(BODY)
        return subprocess.run([sys.executable, str(script)], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
