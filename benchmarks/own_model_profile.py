"""Where the time of a step of own_model.py's networks goes, by kernel, and what the library's kernels give, on one GPU.

    python benchmarks/own_model_profile.py PART

One line of JSON: the seconds of preparing, µs a step, examples a second, µs a step of each kind of kernel and of the 48
longest. ``check`` compares kernels with torch in fp64, ``same`` compares losses over 200 steps.
"""

import argparse
import collections
import copy
import json
import time
from contextlib import nullcontext

import torch
from own_model import BATCH, CharGpt, ResNet18, changed, classify, follow, gpt_of, pictures, text
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from seatrial.train import Step, autocast_weights, batches, compiled_blocks, cosine, module_patches
from seatrial.train.engine import choose_engine
from seatrial.train.saving import rng

#: Part of a kernel's name → its kind, the first that fits.
KINDS = {
    "wgrad": "gradient of filters", "dgrad": "gradient through convolutions", "fprop_wgmma": "attention",
    "bprop": "attention", "fmha": "attention", "flash": "attention", "fprop": "convolutions",
    "gradient_of_x": "our norm", "gradient_sums": "our norm", "wide_moments": "our norm", "normalised": "our norm",
    "layer_norm": "layer norm", "GammaBeta": "layer norm", "multi_tensor": "optimizer and casts", "nvjet": "products",
    "splitK": "products", "cutlass": "products", "gelu": "gelu", "Gelu": "gelu", "triton": "triton",
    "dropout": "dropout", "reduce_kernel": "sums", "elementwise": "elementwise", "Mem": "memory",
}  # fmt: skip


def now():
    torch.cuda.synchronize()
    return time.perf_counter()


def measured(step, name="graph"):
    """Step time, and each kernel's share of a step."""
    source, shape = step.source, step.source.spans[0].shape
    rng.seed_all(0)
    source.start(1, 0)
    began = now()
    engine = choose_engine(name, step, lambda line: print(line, flush=True))
    told = {"engine": engine.name, "prepared_s": round(now() - began, 2)}
    times = []
    for _ in range(5):
        step.start_epoch(0, 0)
        began = now()
        engine.run(shape, 128)
        times.append((now() - began) / 128)
    told |= {"step_us": round(min(times) * 1e6, 1), "per_s": round(shape.rows / min(times))}
    step.start_epoch(0, 0)
    return told | by_kernel(lambda: engine.run(shape, 16), 16)


def by_kernel(work, steps, most=48):
    """µs of each kernel and kind a step, and how long any of them runs."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    kernels, kinds, spans = collections.Counter(), collections.Counter(), []
    for event in seen.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            name = event.name()
            kernels[name[:160]] += event.duration_ns() / 1e3 / steps
            kinds[next((kind for part, kind in KINDS.items() if part in name), "other")] += (
                event.duration_ns() / 1e3 / steps
            )
            spans.append((event.start_ns(), event.end_ns()))
    busy = end = 0
    for first, last in sorted(spans):
        busy, end = busy + max(0, last - max(first, end)), max(end, last)
    rounded = [{name: round(us, 1) for name, us in table.most_common(most)} for table in (kinds, kernels)]
    return {"busy_us": round(busy / 1e3 / steps, 1), "kinds": rounded[0], "kernels": rounded[1]}


def resnet(engine="graph", kernels=True, second_stream=True):
    if not second_stream:
        autocast_weights.SecondStream.takes = lambda self, weight: False
    torch.manual_seed(0)
    model = ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    source = batches(pictures(False), BATCH, transform=changed, drop_last=True)
    options = {"schedule": cosine(), "epochs": 3, "precision": "bf16", "kernels": kernels}
    return measured(Step(model, classify, optimizer, source, **options), engine)


def gpt(engine="graph", kernels=False, mixed=False):
    if mixed:
        compiled_blocks.options = lambda: None
    words, length, batch = text(False)
    there, offsets = words.cuda(), torch.arange(length + 1, device="cuda")

    def windows(places):
        rows = there[places[:, None] + offsets]
        return rows[:, :-1], rows[:, 1:]

    places = torch.arange(0, len(words) - length - 1, len(words) // (batch * 150))
    torch.manual_seed(0)
    model = CharGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    source = batches(TensorDataset(places), batch, transform=windows, drop_last=True)
    options = {"schedule": cosine(), "epochs": 3, "precision": "bf16", "clip_norm": 1.0, "kernels": kernels}
    return measured(Step(model, follow, optimizer, source, **options), engine)


def gpt_eager(half):
    """The plain loop: torch's defaults, in fp32 or under bf16 autocast, AdamW, clipping, the loss over all places."""
    words, length, batch = text(False)
    model = gpt_of(False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)

    def step():
        places = torch.randint(0, len(words) - length - 1, (batch,))
        rows = torch.stack([words[place : place + length + 1] for place in places]).cuda()
        with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
            loss = follow(model, rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(10):
        step()
    began = now()
    for _ in range(30):
        step()
    seconds = (now() - began) / 30
    told = {"per_s": round(batch / seconds), "step_us": round(seconds * 1e6)}
    return told | by_kernel(lambda: [step() for _ in range(4)], 4)


def check():
    """Errors relative to fp64, and whether twenty calls give the same bits."""
    rows = {}
    for dtype in (torch.float32, torch.bfloat16):
        for channels, pixels in ((32, 32), (64, 32), (128, 16), (256, 8), (512, 4), (1024, 7), (2048, 3)):
            torch.manual_seed(0)
            norm = nn.BatchNorm2d(channels).cuda()
            exact, then = copy.deepcopy(norm).double(), module_patches.NormThen(norm, "relu")
            x, other, grad = (
                torch.randn(128, channels, pixels, pixels, device="cuda")
                .to(dtype)
                .to(memory_format=torch.channels_last)
                for _ in range(3)
            )
            given, theirs = [x, other], [x.double().requires_grad_(), other.double().requires_grad_()]
            called = repeatedly(lambda a, b, then=then: then(a, b), given, [norm.weight, norm.bias], grad)
            expected = F.relu(exact(theirs[0]) + theirs[1])
            expected.backward(grad.double())
            parts = [expected, theirs[0].grad, theirs[1].grad, exact.weight.grad, exact.bias.grad]
            rows[f"batch norm {dtype} {channels}"] = compared(called, parts)
    return rows


def repeatedly(call, given, factors, grad):
    """Twenty times: result, gradients of what is given, gradients of the factors."""
    results = []
    for _ in range(20):
        own = [tensor.clone().requires_grad_() for tensor in given]
        for factor in factors:
            factor.grad = None
        out = call(*own)
        out.backward(grad)
        results.append([out.detach(), *(tensor.grad for tensor in own), *(factor.grad for factor in factors)])
    return results


def compared(results, expected):
    alike = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    pairs = zip(results[0], expected, strict=True)
    return {"same bits": alike, "worst": max(float((a.double() - b).norm() / b.norm()) for a, b in pairs)}


def same():
    """200 steps: first loss, mean of losses 40 to 60 and of the last 20; whether eager and graph give the same bits."""
    told, curves = {}, {}
    for name, make in (("resnet", small_resnet), ("gpt", small_gpt)):
        for precision, kernels, engine in (
            ("fp32", False, "eager"), ("fp32", False, "graph"), ("fp32", True, "eager"), ("fp32", True, "graph"),
            ("bf16", False, "graph"), ("bf16", True, "graph"),
        ):  # fmt: skip
            rng.seed_all(1)
            step = make(precision, kernels)
            step.source.start(1, 0)
            rng.seed_all(2)
            prepared, losses, count = choose_engine(engine, step, print), [], len(step.source.spans)
            for epoch in range(200 // count):
                step.source.start(epoch + 1, 0)
                step.start_epoch(epoch * count, 0)
                prepared.run(step.source.spans[0].shape, count)
                losses += step.losses.tolist()
            curves[name, precision, kernels, engine] = losses
            key = f"{name} {precision} {'kernels ' if kernels else ''}{engine}"
            told[key] = [round(losses[0], 5), round(sum(losses[40:60]) / 20, 4), round(sum(losses[-20:]) / 20, 4)]
        for kernels in (False, True):
            pair = [curves[name, "fp32", kernels, engine] for engine in ("eager", "graph")]
            told[f"{name}, kernels {kernels}: eager = graph"] = pair[0] == pair[1]
    return told


def small_resnet(precision, kernels):
    images, labels = pictures(True).tensors
    for label in range(10):
        images[labels == label, label % 3, label * 3 : label * 3 + 3] = 255
    images, labels = images.repeat(5, 1, 1, 1), labels.repeat(5)
    model = ResNet18((64, 64, 128, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    source = batches(TensorDataset(images.float().sub(120).div(64), labels), 64)
    return Step(model, classify, optimizer, source, precision=precision, epochs=10, kernels=kernels)


def small_gpt(precision, kernels):
    drawn = torch.randint(0, 4, (20000,), generator=torch.Generator().manual_seed(3))
    rows = (torch.arange(20000) * 7 % 61 + drawn).unfold(0, 65, 15)[:1280]
    model = CharGpt(3, 128, 4, 64, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    source = batches(TensorDataset(rows[:, :-1].clone(), rows[:, 1:].clone()), 32)
    return Step(model, follow, optimizer, source, precision=precision, epochs=5, clip_norm=1.0, kernels=kernels)


def small_steps():
    """Two steps of each, for compute-sanitizer."""
    for make in (small_resnet, small_gpt):
        step = make("bf16", True)
        step.source.start(1, 0)
        step.start_epoch(0, 0)
        for _ in range(2):
            step.run_fixed(step.source.spans[0].shape)
    torch.cuda.synchronize()
    return "done"


PARTS = {
    "resnet": resnet,
    "resnet_one_stream": lambda: resnet(second_stream=False),
    "resnet_torch": lambda: resnet(kernels=False),
    "resnet_compiled": lambda: resnet("compile+graph", kernels=False),
    "gpt": lambda: gpt(kernels=True),
    "gpt_torch": gpt,
    "gpt_compiled": lambda: gpt("compile+graph"),
    "gpt_compiled_mixed": lambda: gpt("compile+graph", mixed=True),
    "gpt_eager_bf16": lambda: gpt_eager(True),
    "gpt_eager_fp32": lambda: gpt_eager(False),
    "check": check,
    "same": same,
    "small_steps": small_steps,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    print(json.dumps(PARTS[parser.parse_args().part]()), flush=True)
