"""Spam without padding, on one GPU: are the numbers the padded model's, how fast is it, what takes the time.

    python benchmarks/packed_spam.py OUT --sms DIR --vocabulary FILE [--only check,speed,…] [--tiny]

Parts, each in a process of its own with a time limit: ``check`` (gradients by kernels against torch in fp64, 200 steps
against the padded model in fp32), ``speed`` (a step at BERT-base's shape, kernel by kernel), ``recipe`` (epochs of the
recipe, packed and padded), ``checkpoint`` (epochs with a checkpoint of 1.3 GB each and without), ``accuracy`` (seeds of
both), ``sanitizer`` (compute-sanitizer over a small step). OUT/packed_NAME.json is written after each. ``--tiny``: a
trial on a CPU.
"""

import argparse
import copy
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMITS_S = {"check": 60, "speed": 70, "recipe": 70, "checkpoint": 70, "accuracy": 90, "sanitizer": 75}


def model_of(shape, vocabulary=30522, dropout=0.1, device="cpu", seed=0, spread=0.02):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        initializer_range=spread, **shape,
    )  # fmt: skip
    with torch.device(device):
        return BertForSequenceClassification(config).train()


def texts_of(arguments, tiny=False):
    """The training messages in numbers."""
    import torch

    from seatrial.recipes import spam
    from seatrial.train.data.texts import TextSet

    texts, labels = spam.read_messages(arguments.sms)
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(arguments.vocabulary))
    tokenizer.enable_truncation(spam.LONGEST)
    data = TextSet.of([each.ids for each in tokenizer.encode_batch(texts)], labels)
    train = torch.tensor([number % 5 != 4 and (not tiny or number < 100) for number in range(len(texts))])
    return data.split(train)


def lone():
    import torch

    from seatrial.train.distributed import Ranks

    return Ranks(0, 1, torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))


def gradient_of(bert, parameter):
    """A parameter's gradient as the model has it: of words all rows."""
    import torch

    if parameter is not bert.weights.words:
        return bert.weights.gradient(parameter)
    there = bert.weights._there
    real = there >= 0
    dense = torch.zeros(parameter.shape, dtype=bert.weights.dtype, device=there.device)
    dense[there[real].long()] = bert.weights.word_gradients[real]
    return dense


def padded(batch):
    """A packed batch as rows of equal length."""
    import torch

    lengths = (batch.starts[1:] - batch.starts[:-1]).long()
    real = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
    tokens = torch.zeros(real.shape, dtype=torch.long, device=lengths.device)
    tokens[real] = batch.tokens_T[: int(batch.starts[-1])].long()
    return tokens, real


# --- the parts --------------------------------------------------------------------------------------------------------


def check(arguments):
    """Gradients against the padded model's in double precision; losses of 200 steps against its own."""
    import torch
    from torch.nn import functional as F

    from seatrial.recipes import spam
    from seatrial.train.optim.optimizer import adamw
    from seatrial.train.packed.bert import PackedBert
    from seatrial.train.packed.texts import PackedTexts
    from seatrial.train.packed.weights import FlatAdamW
    from seatrial.train.precision import Precision

    here = lone()
    Precision("fp32", here.device).apply()
    data, _ = texts_of(arguments, arguments.tiny)
    tiny = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    wide = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 3072}
    results = {}
    for name, shape in {"small": tiny, **({} if arguments.tiny else {"wide": wide})}.items():
        start = model_of(shape, dropout=0.0, spread=0.05)
        for way, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            model = copy.deepcopy(start).to(here.device)
            source = PackedTexts(data, 32, here, 0)
            source.start(1, 0)
            bert = PackedBert(model, dtype, here, source, weight_decay=0.01)
            first = torch.zeros(1, dtype=torch.long, device=here.device)
            batch, labels = source.load(first, source.spans[0].shape, 0, 32)
            bert.weights.clear()
            loss = bert.loss(model, batch, labels)
            loss.backward()
            double = copy.deepcopy(start).to(here.device).double()
            expected = F.cross_entropy(spam.logits(double, padded(batch)), labels)
            expected.backward()
            exact = {n: p.grad for n, p in double.named_parameters()}
            least = 1e-6 * sum(g.square().sum() for g in exact.values()).sqrt()
            worst = {
                n: ((gradient_of(bert, p).double() - exact[n]).norm() / exact[n].norm()).item()
                for n, p in model.named_parameters()
                if exact[n].norm() > least
            }
            results[f"{name}, {way} against fp64, padded"] = {
                "loss": [loss.item(), expected.item()],
                "worst gradients": sorted(worst.items(), key=lambda item: -item[1])[:3],
            }
    # 200 steps, no dropout: packed and padded
    losses = {}
    for way in ("padded fp32", "packed fp32", "packed bf16"):
        model = model_of(tiny, dropout=0.0).to(here.device)
        source = PackedTexts(data, 32, here, 0)
        source.start(1, 0)
        dtype = torch.bfloat16 if "bf16" in way else torch.float32
        bert = PackedBert(model, dtype, here, source, weight_decay=0.01) if "packed" in way else None
        optimizer = FlatAdamW(bert.weights, 5e-4) if bert else adamw(model, 5e-4, 0.01)
        told = []
        for step in range(6 if arguments.tiny else 200):
            number = step % (len(source.spans) - 1)
            span = source.spans[number]
            batch, labels = source.load(torch.tensor([number], device=here.device), span.shape, 0, span.shape.rows)
            if bert:
                bert.weights.clear()
                loss = bert.loss(model, batch, labels)
                loss.backward()
                bert.weights.clip(1.0)
            else:
                model.zero_grad()
                loss = F.cross_entropy(spam.logits(model, padded(batch)), labels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            told.append(loss.detach())
        losses[way] = torch.stack(told).tolist()
    for way in ("packed fp32", "packed bf16"):
        differences = [abs(a - b) for a, b in zip(losses[way], losses["padded fp32"], strict=True)]
        results[f"{way} against padded fp32, losses differ by at most"] = {
            f"in {n} steps": max(differences[:n]) for n in (10, 50, 100, 200)
        }
    results["losses"] = {way: told[:3] + told[-3:] for way, told in losses.items()}
    return results


def speed(arguments):
    """Milliseconds a step in a CUDA graph; kernels of one step."""
    import torch

    from seatrial.recipes import spam
    from seatrial.train.engine import choose_engine
    from seatrial.train.optim.schedules import triangle
    from seatrial.train.packed.bert import PackedBert
    from seatrial.train.packed.texts import PackedTexts
    from seatrial.train.packed.weights import FlatAdamW
    from seatrial.train.precision import choose_precision
    from seatrial.train.step import Step

    here, results = lone(), {}
    on_gpu = here.device.type == "cuda"
    data, _ = texts_of(arguments, arguments.tiny)
    shape = spam.SHAPES["small" if arguments.tiny else "base"]
    precision = choose_precision("bf16", here.device)
    precision.apply()
    for batch in (16,) if arguments.tiny else (64, 256):
        model = model_of(shape, device=here.device)
        source = PackedTexts(data, batch, here, 0)
        bert = PackedBert(model, torch.bfloat16, here, source, weight_decay=0.01)
        step = Step(
            model, bert.loss, FlatAdamW(bert.weights, 2e-5), source, ranks=here, precision=precision,
            schedule=triangle(0.1), epochs=3, clip_norm=1.0, gradients=bert.weights,
        )  # fmt: skip
        source.start(1, 0)
        notes = []
        engine = choose_engine("auto", step, notes.append)
        step.start_epoch(0, 0)
        steps = sum(span.shape.rows == batch for span in source.spans)
        full = source.spans[0].shape if source.spans[0].shape.rows == batch else source.spans[1].shape

        def run(count, engine=engine, full=full, step=step):
            step.position.zero_()
            engine.run(full, count)

        run(min(5, steps))
        times = []
        for _ in range(3):
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            run(steps)
            if on_gpu:
                torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / steps)
        name = f"batch {batch}"
        results[name] = {
            "ms a step": [round(1e3 * each, 3) for each in times], "messages/s": round(batch / min(times)),
            "notes": notes, "losses": step.losses[:3].tolist(), "tokens": full.length,
        }  # fmt: skip
        if on_gpu:
            results[name]["kernels"] = profile(run, 10)
            results[name]["memory MB"] = torch.cuda.max_memory_allocated() // 2**20
        write(arguments, "speed", results)
        del engine, step, model, bert, run
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return results


def profile(run, count):
    """Microseconds a step by kernel."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CUDA]) as seen:
        run(count)
        torch.cuda.synchronize()
    rows = [(each.key[:100], each.self_device_time_total / count, each.count / count) for each in seen.key_averages()]
    rows.sort(key=lambda row: -row[1])
    return {"sum": round(sum(row[1] for row in rows)), "number": sum(row[2] for row in rows),
            "rows": [f"{time_:8.1f} us {number:6.1f}x {name}" for name, time_, number in rows[:28]]}  # fmt: skip


def trained(arguments, *words, padded_way=False, checkpoints=True):
    """The recipe in this process; what it printed, and the seconds of its epochs."""
    import dataclasses
    import io
    from contextlib import redirect_stdout
    from unittest.mock import patch

    import torch

    from seatrial.recipes import spam
    from seatrial.train import loop
    from seatrial.train.packed import bert

    outcomes = []

    def fit(step, test, trackers, settings):
        settings = settings if checkpoints else dataclasses.replace(settings, checkpoints=None)
        outcomes.append((time.perf_counter(), loop.fit(step, test, trackers, settings)))
        return outcomes[-1][1]

    patches = {"fit": fit, "takes": (lambda *_: "a comparison") if padded_way else bert.takes}
    printed = io.StringIO()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as models, redirect_stdout(printed), patch.multiple(spam, **patches):
        data = ["--data", str(arguments.sms), "--models", models, "--from-scratch"]
        code = spam.main([*data, *words])
    outcome = outcomes[0][1]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    lines = printed.getvalue().splitlines()
    return {
        "code": code, "epochs": [line for line in lines if "epoch" in line and "examples/s" in line],
        "told": [line for line in lines if "epoch" not in line][:8], "loop_s": round(outcome.loop_s, 3),
        "train_s": round(outcome.train_s, 3), "whole_s": round(time.perf_counter() - began, 1),
        "messages/s": round(outcome.examples / outcome.train_s), "metrics": outcome.metrics,
        "last loss": sum(outcome.losses[-20:]) / 20,
    }  # fmt: skip


def base(arguments, batch, epochs):
    shape = "small" if arguments.tiny else "base"
    given = ["--shape", shape, "--vocabulary", str(arguments.vocabulary), "--learning-rate", "2e-5"]
    return [*given, "--batch", str(batch), "--epochs", str(epochs)]


def recipe(arguments):
    """Epochs of the recipe at BERT-base's shape, without checkpoints: every batch size in this one process."""
    results = {}
    for way in arguments.ways.split(","):
        for number, batch in enumerate(map(int, arguments.batches.split(","))):
            name = f"batch {batch}, {way}, number {number}"
            words = base(arguments, batch, 1 if arguments.tiny else 4)
            results[name] = trained(arguments, *words, padded_way=way == "padded", checkpoints=False)
            write(arguments, "recipe", results)
    return results


def checkpoint(arguments):
    """Epochs with a checkpoint each, and without."""
    results = {}
    for batch in (64, 256):
        for kept in (False, True):
            name = f"batch {batch}, {'a checkpoint each' if kept else 'none'}"
            results[name] = trained(arguments, *base(arguments, batch, 2 if arguments.tiny else 8), checkpoints=kept)
            write(arguments, "checkpoint", results)
    return results


def accuracy(arguments):
    """The small shape from scratch, and BERT-base's with random weights, by seed."""
    results = {}
    for seed in range(1 if arguments.tiny else 4):
        for way in (False, True):
            name = f"small, seed {seed}, {'padded' if way else 'packed'}"
            words = ["--epochs", "2" if arguments.tiny else "8", "--seed", str(seed)]
            found = trained(arguments, *words, padded_way=way, checkpoints=False)
            results[name] = {"metrics": found["metrics"], "last loss": found["last loss"]}
            write(arguments, "accuracy", results)
    return results


def sanitizer(arguments):
    """memcheck and racecheck over a few small steps."""
    results = {}
    for tool in arguments.tools.split(","):
        command = [
            "compute-sanitizer",
            "--tool",
            tool,
            sys.executable,
            __file__,
            str(arguments.out),
            "--part",
            "small_steps",
        ]
        command += ["--sms", str(arguments.sms), "--vocabulary", str(arguments.vocabulary)]
        began = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=45)
            said = (done.stdout + done.stderr).splitlines()
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            said = [str(error)[:300]]
        results[tool] = {"said": said[-6:], "first": [line for line in said if "====" in line][:12],
                         "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
        write(arguments, "sanitizer", results)
    return results


def small_steps(arguments):
    """Two steps of a small model in both formats: for compute-sanitizer."""
    import torch

    from seatrial.train.data.texts import TextSet
    from seatrial.train.packed.bert import PackedBert
    from seatrial.train.packed.texts import PackedTexts
    from seatrial.train.packed.weights import FlatAdamW

    here = lone()
    lengths = [1, 2, 16, 17, 31, 33, 40, 64, 65, 100, 128, 5, 9, 12, 3, 20]
    shape = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 320}
    tokens = [torch.randint(1, 50, (length,)).tolist() for length in lengths]
    data = TextSet.of(tokens, torch.randint(0, 2, (len(lengths),)))
    for dtype in (torch.float32, torch.bfloat16):
        model = model_of(shape, 50, device=here.device)
        source = PackedTexts(data, 8, here, 0)
        bert = PackedBert(model, dtype, here, source, weight_decay=0.01)
        optimizer = FlatAdamW(bert.weights, 1e-3)
        source.start(1, 0)
        for number, span in enumerate(source.spans):
            batch, labels = source.load(torch.tensor([number], device=here.device), span.shape, 0, span.shape.rows)
            bert.weights.clear()
            loss = bert.loss(model, batch, labels)
            loss.backward()
            bert.weights.clip(1.0)
            optimizer.step()
            print(dtype, loss.item(), flush=True)
    return {}


PARTS = {
    "check": check, "speed": speed, "recipe": recipe, "checkpoint": checkpoint, "accuracy": accuracy,
    "sanitizer": sanitizer, "small_steps": small_steps,
}  # fmt: skip


def write(arguments, name, found):
    """OUT/NAME.json."""
    (arguments.out / f"packed_{name}.json").write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sms", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--only", default="check,speed,recipe,checkpoint,accuracy,sanitizer")
    parser.add_argument("--part")
    parser.add_argument("--ways", default="packed,padded")
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part:
        found = PARTS[arguments.part](arguments)
        if found:
            write(arguments, arguments.part, found)
        return 0
    for name in arguments.only.split(","):
        began = time.perf_counter()
        with (arguments.out / f"packed_{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], "--part", name], stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(LIMITS_S[name] * (10 if arguments.tiny else 1))
            except subprocess.TimeoutExpired:
                import os

                os.killpg(process.pid, signal.SIGKILL)
                code = "too long"
        print(f"{name}: {code}, {time.perf_counter() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
