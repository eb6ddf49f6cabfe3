"""Measures every speed target of the training library on one GPU, in one go.

    python benchmarks/gpu_session.py --data DIR --out DIR [--only mnist,cifar10] [--skip baseline]

DIR holds mnist/, cifar10/, sms_spam/ and bert/vocab.txt. Every part runs in a process of its own with a time limit, so
that one that crashes or hangs ends alone. OUT gets NAME.log of each part and results.json after each.
"""

import argparse
import json
import lzma
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import groupby
from pathlib import Path

LIMIT_S = 115
HERE = Path(__file__).resolve().parent


# --- the parts; each returns what goes into results.json ------------------------------------------------------------


def versions(data):
    """What this ran on."""
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count()}
    for name in ("torchvision", "transformers", "triton", "accelerate", "tokenizers"):
        try:
            facts[name] = __import__(name).__version__
        except ImportError as error:
            facts[name] = f"missing: {error}"
    if torch.cuda.is_available():
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def baseline_mnist(data):
    """The tutorial's MNIST: five epochs with four workers, and one with the default loader: 9 s each on an H200."""
    runs = {}
    for workers, epochs in ((4, 5), (0, 1)):
        name = f"workers {workers}, epochs {epochs}"
        runs[name] = script("tutorial_mnist.py", data / "mnist", workers=workers, epochs=epochs)
    return runs


def baseline_spam(data):
    """The stock Trainer at batch 16 and 64."""
    vocabulary = data / "bert" / "vocab.txt"
    return {
        f"batch {batch}": script("tutorial_spam.py", data / "sms_spam", vocabulary=vocabulary, batch=batch, steps=60)
        for batch in (16, 64)
    }


def same_numbers(data):
    """Losses of eager, graph, compile and compile+graph under one seed, fp32, 200 steps of mnist."""
    curves = {engine: mnist_outcome(data, engine, "fp32", steps=200).losses for engine in ENGINES}
    eager = curves["eager"]
    differences = {
        engine: {
            "largest": max(abs(a - b) for a, b in zip(curve, eager, strict=True)),
            "first 10": max(abs(a - b) for a, b in zip(curve[:10], eager[:10], strict=True)),
            "equal": curve == eager,
        }
        for engine, curve in curves.items()
    }
    again = mnist_outcome(data, "eager", "fp32", steps=200).losses
    return {"steps": len(eager), "differences": differences, "eager repeats itself": again == eager}


def mnist(data):
    """Batch 64, five epochs in a graph from five seeds each: bf16 (the recipe's own way), a falling rate, and tf32."""
    ways = [("bf16", False), ("bf16", True), ("tf32", False)]
    return {
        f"graph {precision} {'triangle' if falling else 'constant'} seed {seed}": one_mnist(
            data, "graph", precision, seed, schedule=falling
        )
        for precision, falling in ways
        for seed in range(5)
    }


def mnist_engines(data):
    """The same through the other engines, once."""
    ways = (("compile+graph", "bf16"), ("compile+graph", "tf32"), ("eager", "bf16"))
    return {f"{engine} {precision}": one_mnist(data, engine, precision, 0) for engine, precision in ways}


def one_mnist(data, engine, precision, seed, **options):
    """One training of five epochs."""
    began = time.perf_counter()
    outcome = mnist_outcome(data, engine, precision, epochs=5, seed=seed, **options)
    whole = time.perf_counter() - began
    us_per_step = outcome.train_s / len(outcome.losses) * 1e6
    result = numbers(outcome) | {"us_per_step": us_per_step, "with_preparation_s": whole}
    print(engine, precision, seed, result, flush=True)
    return result


def mnist_kernels(data):
    """The kernels of one step of mnist, graph and compile+graph: names, counts, microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    tables = {}
    for engine in ("graph", "compile+graph"):
        _, chosen, span, _ = mnist_step(data, engine, "bf16")
        chosen.run(span.shape, 64)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            chosen.run(span.shape, 64)
            torch.cuda.synchronize()
        rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
        tables[engine] = [
            {"name": row.key[:120], "per_step": row.count / 64, "us_per_step": row.self_device_time_total / 64}
            for row in rows
            if row.self_device_time_total
        ]
        print(engine, sum(row["per_step"] for row in tables[engine]), "kernels a step", flush=True)
        for row in tables[engine]:
            print(f"  {row['us_per_step']:8.2f} us {row['per_step']:5.1f}x {row['name']}", flush=True)
    return tables


def mnist99(data):
    """To 99 % test accuracy from 20 seeds: three settings that get there or nearly."""
    results = {}
    for batch, rate, epochs in ((256, 5e-3, 2), (512, 8e-3, 3), (512, 8e-3, 2)):
        results[f"batch {batch}, rate {rate}, {epochs} epochs"] = from_seeds(data, range(100, 120), batch, rate, epochs)
        print(results, flush=True)
    return results


def from_seeds(data, seeds, batch, rate, epochs):
    """mnist from each seed through one captured step, tested once at the end."""
    import torch

    from seatrial.recipes.mnist import network
    from seatrial.train.evaluation import evaluate
    from seatrial.train.saving.rng import seed_all

    step, engine, _, tests = mnist_step(data, "graph", "bf16", batch=batch, rate=rate, epochs=epochs, schedule=True)
    tests = tests(2500)
    accuracies, loops = [], []
    for seed in seeds:
        seed_all(seed)
        step.model.load_state_dict(network(28, 28, 10).state_dict())
        for slots in step.optimizer.state.values():
            for tensor in slots.values():
                tensor.zero_()
        step.source._seed = seed
        torch.cuda.synchronize()
        began = time.perf_counter()
        for epoch in range(1, epochs + 1):
            step.source.start(epoch, 0)
            step.start_epoch((epoch - 1) * len(step.source.spans), 0)
            for shape, members in groupby(span.shape for span in step.source.spans):
                engine.run(shape, len(list(members)))
        torch.cuda.synchronize()
        loops.append(time.perf_counter() - began)
        accuracies.append(evaluate(step.model, tests, step.ranks, step.precision)["accuracy"])
    return {
        "n": len(loops),
        "mean_accuracy": statistics.fmean(accuracies),
        "least_accuracy": min(accuracies),
        "median_loop_s": statistics.median(loops),
        "longest_loop_s": max(loops),
    }


def mnist_deep(data):
    """Seconds an epoch, batch 128, augmentation, bf16, through each engine."""
    return {
        f"{engine} bf16": recipe(
            "mnist-deep", data / "mnist", "--epochs", "4", "--engine", engine, "--precision", "bf16"
        )
        for engine in ("graph", "eager")
    }


def cifar10(data):
    """From process start to 94 %, then 20 seeds in one process."""
    unpacked = unpack_cifar10(data)
    first = recipe("cifar10", unpacked)
    return {"one process": first, "twenty seeds (see log)": recipe("cifar10", unpacked, "--runs", "20")}


def cifar10_engines(data):
    """One run through each engine and precision."""
    unpacked = unpack_cifar10(data)
    ways = (("eager", "fp16"), ("graph", "bf16"), ("compile+graph", "fp16"))
    return {f"{e} {p}": recipe("cifar10", unpacked, "--engine", e, "--precision", p) for e, p in ways}


def spam(data):
    """BERT-base shape, random weights, captured, batch 64 and 128."""
    return {f"batch {batch} graph": spam_base(data, batch, "graph") for batch in (64, 128)}


def spam_more(data):
    """The same at batch 16, and eagerly at 64."""
    return {
        f"batch {batch} {engine}": spam_base(data, batch, engine) for batch, engine in ((16, "graph"), (64, "eager"))
    }


def spam_base(data, batch, engine):
    """Three epochs of BERT-base."""
    options = ("--from-scratch", "--shape", "base", "--vocabulary", str(data / "bert" / "vocab.txt"), "--epochs", "3")
    more = ("--batch", str(batch), "--engine", engine, "--learning-rate", "2e-5")
    return recipe("spam", data / "sms_spam", *options, *more)


def spam_small(data):
    """The small model from scratch, with its own word pieces: accuracy."""
    return {"small": recipe("spam", data / "sms_spam", "--from-scratch")}


def matmul(data):
    """Every kind at 4096, 8192 and 16384, and a direct torch.matmul beside it."""

    from seatrial.recipes.matmul import measure

    table = {
        f"{kind} {size}": 2 * size**3 / measure(kind, size) / 1e12
        for kind in ("fp32", "tf32", "bf16", "fp16", "fp8")
        for size in (4096, 8192, 16384)
    }
    return {"tflops": table, "side by side": side_by_side("bf16", 16384)}


def side_by_side(kind, size, rounds=10, products=6):
    """The library's product and a plain torch.matmul, in turns, the same number each time: TFLOP/s."""
    import torch

    from seatrial.recipes.matmul import product_of, time_on_gpu

    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ways = {"library": product_of(kind, size), "torch.matmul": lambda: torch.matmul(a, b)}
    rates = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, product in ways.items():
            rate = 2 * size**3 / time_on_gpu(product, products) / 1e12
            if turn:  # the first turn warms up
                rates[name].append(rate)
    return {name: {"best": max(of), "median": statistics.median(of)} for name, of in rates.items()}


def recovery(data):
    """mnist-deep under a memory cap that a batch of 8192 does not fit: does it go on, and with what."""
    options = ("--batch", "8192", "--epochs", "1", "--memory-fraction", "0.01")
    return {engine: recipe("mnist-deep", data / "mnist", *options, "--engine", engine) for engine in ("eager", "graph")}


def resume(data):
    """Three epochs at once and as 2 + 1, eager fp32: are the weights the same bit for bit."""
    import torch

    weights = {}
    for name, parts in (("whole", [["--epochs", "3"]]), ("parts", [["--epochs", "2"], ["--epochs", "3", "--resume"]])):
        folder = Path(os.environ["SESSION_OUT"]) / f"resume-{name}"
        for options in parts:
            command = ["--data", str(data / "mnist"), "--models", str(folder), "--engine", "eager"]
            command += ["--schedule", "constant"]  # another number of epochs would fall at another pace
            python("-m", "seatrial.recipes.mnist", *command, "--precision", "fp32", "--batch", "512", *options)
        weights[name] = torch.load(folder / "mnist.pth", weights_only=True)
    different = [name for name, tensor in weights["whole"].items() if not torch.equal(tensor, weights["parts"][name])]
    return {"different tensors": different}


def streaming(data):
    """Resident and streamed mnist under one seed: the same losses, and at what speed."""
    resident = mnist_outcome(data, "graph", "fp32", epochs=1)  # tf32 lets cuDNN add in any order
    streamed = mnist_outcome(data, "graph", "fp32", epochs=1, streamed=True)
    return {
        "resident": numbers(resident),
        "streamed": numbers(streamed),
        "same losses": resident.losses == streamed.losses,
    }


def tests(data):
    """The test-suite's GPU part."""
    return {"output": python("-m", "pytest", "tests", "-m", "gpu", "-q", "-x", check=False)[-2000:]}


PARTS = {
    part.__name__: part
    for part in (
        versions,
        same_numbers,
        mnist,
        mnist_engines,
        mnist_kernels,
        mnist99,
        mnist_deep,
        cifar10,
        cifar10_engines,
        spam,
        spam_more,
        spam_small,
        matmul,
        recovery,
        resume,
        streaming,
        baseline_mnist,
        baseline_spam,
        tests,
    )
}
ENGINES = ("eager", "graph", "compile", "compile+graph")


# --- how they are run ---------------------------------------------------------------------------------------------


def mnist_step(
    data,
    engine,
    precision,
    *,
    batch=64,
    rate=1e-3,
    epochs=5,
    schedule=False,
    seed=0,
    streamed=False,
    last=True,
    search=False,
    prepare=True,
):
    """A step of mnist, its prepared engine, its first span, and its tests in batches of a size."""
    import torch

    from seatrial.recipes.mnist import image_sets, network
    from seatrial.train.data.images import ResidentImages, TestImages, stream_images
    from seatrial.train.data.mnist import read_folder
    from seatrial.train.distributed import Ranks
    from seatrial.train.engine import choose_engine
    from seatrial.train.kernels.lenet import cross_entropy
    from seatrial.train.optim.optimizer import adam
    from seatrial.train.optim.schedules import triangle
    from seatrial.train.precision import choose_precision
    from seatrial.train.saving.examples import Normalisation
    from seatrial.train.saving.rng import seed_all
    from seatrial.train.step import Step

    ranks = Ranks(0, 1, torch.device("cuda", 0))
    chosen = choose_precision(precision, ranks.device)
    chosen.apply()
    seed_all(seed)
    train_set, test_set = image_sets(read_folder(data / "mnist"))
    normalise = Normalisation.of(train_set.images_NCHW)
    torch.backends.cudnn.benchmark = search
    layout = torch.channels_last if last else torch.contiguous_format
    model = network(28, 28, 10).to(ranks.device, memory_format=layout)
    kind = stream_images if streamed else ResidentImages
    source = kind(train_set, normalise, batch, ranks, seed)
    step = Step(
        model,
        cross_entropy,
        adam(model, rate),
        source,
        ranks=ranks,
        precision=chosen,
        schedule=triangle(0.2) if schedule else None,
        epochs=epochs,
    )
    tests = partial(TestImages, test_set, normalise, ranks)
    if not prepare:
        return step, None, source.spans[0], tests
    source.start(1, 0)
    step.start_epoch(0, 0)
    prepared = choose_engine(engine, step, print)
    return step, prepared, source.spans[0], tests


def mnist_outcome(data, engine, precision, *, epochs=1, steps=None, **options):
    """Train mnist in this process; ``steps`` cuts the training set to so many batches."""
    import torch

    from seatrial.train.evaluation import evaluate
    from seatrial.train.loop import Settings, fit
    from seatrial.train.trackers import Trackers

    step, _, _, tests = mnist_step(data, engine, precision, epochs=epochs, prepare=False, **options)
    if steps:
        step.source.spans, step.losses = step.source.spans[:steps], step.losses[:steps].clone()
    tests = tests(5000)
    settings = Settings(epochs=epochs, engine=engine, seed=options.get("seed", 0))

    def test():
        return evaluate(step.model, tests, step.ranks, step.precision)

    outcome = fit(step, test, Trackers([]), settings)
    torch.cuda.synchronize()
    return outcome


def numbers(outcome):
    """What is kept of an outcome."""
    return {"loop_s": outcome.loop_s, "train_s": outcome.train_s, "accuracy": outcome.metrics.get("accuracy")}


def recipe(name, data, *options):
    """A recipe in a fresh process: its last numbers, its wall time, its last lines."""
    events = Path(os.environ["SESSION_OUT"]) / "events.jsonl"
    events.unlink(missing_ok=True)
    models = Path(os.environ["SESSION_OUT"]) / "models"
    began = time.perf_counter()
    module = f"seatrial.recipes.{name.replace('-', '_')}"
    output = python("-m", module, "--data", str(data), "--models", str(models), *options, events=events)
    seconds = time.perf_counter() - began
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    ends = [line for line in lines if line.get("phase") == "end"]
    return {"process_s": seconds, "end": ends[-1] if ends else None, "said": output.splitlines()[-8:]}


def script(name, data, **options):
    """A baseline script of this folder: the JSON on its last line."""
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    return json.loads(python(str(HERE / name), "--data", str(data), *arguments).splitlines()[-1])


def python(*arguments, events=None, check=True):
    """Run Python with our sources; its output, which is also shown."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    if events:
        environment["SEATRIAL_EVENTS"] = str(events)
    print("$ python", *arguments, flush=True)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    print(done.stdout, done.stderr[-4000:], flush=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stderr.strip() or done.stdout.strip())[-1500:]}")
    return done.stdout


def run_limited(command, log):
    """Run a part; at its time limit it and everything it started is killed. Raises SubprocessError."""
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def unpack_cifar10(data):
    """The .bin files, unpacked once: decompressing takes longer than training."""
    folder = Path(os.environ["SESSION_OUT"]) / "cifar10"
    folder.mkdir(exist_ok=True)
    for packed in (data / "cifar10").glob("*.bin.xz"):
        plain = folder / packed.stem
        if not plain.exists():
            plain.write_bytes(lzma.decompress(packed.read_bytes()))
    return folder if list(folder.iterdir()) else data / "cifar10"


def main():
    """Run the parts that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--skip", default="")
    parser.add_argument("--part", help="run this one here and print its JSON")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["SESSION_OUT"] = str(arguments.out.resolve())
    if arguments.part:
        sys.path.insert(0, str(HERE.parent / "src"))
        print("\nRESULT " + json.dumps(PARTS[arguments.part](arguments.data.resolve())), flush=True)
        return
    results = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "command": sys.argv}
    for name in [part for part in arguments.only.split(",") if part not in arguments.skip.split(",")]:
        began = time.perf_counter()
        log = arguments.out / f"{name}.log"
        command = [sys.executable, __file__, "--part", name, "--data", str(arguments.data), "--out", str(arguments.out)]
        with log.open("w") as file:
            try:
                run_limited(command, file)
                text = log.read_text().rsplit("RESULT ", 1)[1]
                results[name] = json.loads(text)
            except (subprocess.SubprocessError, IndexError, ValueError) as error:
                results[name] = {"failed": str(error), "tail": log.read_text()[-1500:]}
        seconds = time.perf_counter() - began
        print(f"=== {name}: {seconds:.1f} s\n{json.dumps(results[name], indent=1)[:6000]}", flush=True)
        (arguments.out / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
