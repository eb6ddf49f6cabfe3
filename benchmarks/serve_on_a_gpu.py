"""Serves mnist and spam (BERT-base's shape) on one machine and measures them over HTTP, one after the other.

    python benchmarks/serve_on_a_gpu.py --out DIR [--mnist IDX_FOLDER] [--messages FOLDER] [--small]

Needs torch, transformers, tokenizers, safetensors, and what serving needs (uvicorn, uvloop, httptools, starlette …).
Models have random weights unless --mnist names the data. Every part has a time limit; OUT gets results.json after each,
NAME.log of each server. --small is for a try on a CPU.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
sys.path.insert(0, str(SOURCE))
MESSAGE = "free call now txt win prize ok lor see you home when love later urgent claim cash reply stop sorry meet"


# --- models ---------------------------------------------------------------------------------------------------------


def make_mnist(models, data, device):
    """Trained for an epoch where there is data, else random weights, with examples as the recipe saves them."""
    if data:
        command = [sys.executable, "-m", "seatrial.recipes.mnist", "--data", data, "--models", models, "--epochs", "1"]
        subprocess.run(command, check=True, timeout=60, env=environment(models))
        return "trained for an epoch"
    import torch

    from seatrial.recipes.mnist import network
    from seatrial.train.saving.examples import Normalisation, image_examples, save_examples
    from seatrial.train.saving.model_files import save_model

    torch.manual_seed(0)
    model = network(28, 28, 10)
    images = torch.randint(0, 256, (64, 1, 28, 28), dtype=torch.uint8)
    saved = save_model(model, models, "mnist")
    save_examples(image_examples("mnist", model, images, Normalisation.of(images), tuple("0123456789")), saved[-1])
    return "random weights"


def make_spam(models, messages, shape):
    """Random weights and a tokenizer learned from messages."""
    import random

    import torch

    from seatrial.recipes import spam
    from seatrial.train.data.texts import TextSet
    from seatrial.train.saving.examples import save_examples

    drawn = random.Random(0)
    if messages:
        texts, labels = spam.read_messages(Path(messages))
    else:
        texts = [" ".join(drawn.choice(MESSAGE.split()) for _ in range(drawn.randint(2, 40))) for _ in range(500)]
        labels = torch.tensor([number % 2 for number in range(500)])
    arguments = argparse.Namespace(from_scratch=True, vocabulary=None, shape=shape)
    torch.manual_seed(0)
    tokenizer = spam.tokenizer_of(arguments, texts)
    model = spam.model_of(arguments, 30522 if shape == "base" else len(tokenizer)).eval()  # BERT-base's own vocabulary
    test_set = TextSet.of(tokenizer(texts[:64], truncation=True, max_length=spam.LONGEST)["input_ids"], labels[:64])
    folder = Path(models) / "spam"
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    save_examples(spam.examples(model, test_set), folder / "model.safetensors")
    lengths = test_set.lengths_N.float()
    return {"parameters": sum(each.numel() for each in model.parameters()), "tokens a message": float(lengths.mean())}


# --- the model alone, without HTTP ----------------------------------------------------------------------------------


def alone(name, models):
    """Rows/s of predict by batch, and the graphs' answers against eager fp32 ones, on rows that were not saved."""
    import numpy as np
    import torch

    from seatrial.serve.runners.open import open_model

    os.environ["SEATRIAL_MODELS_DIR"] = str(models)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    model = open_model(name, device)
    opened_s = time.perf_counter() - began
    warm = model.warm_up()
    reference = open_model(name, torch.device("cpu"))
    reference.warm_up()
    drawn = np.random.default_rng(1)
    if name == "spam":
        lengths = np.clip(drawn.gamma(2.2, 10, 512).astype(int), 3, 128)
        rows = [(drawn.integers(5, 50, length, dtype=np.int32),) for length in lengths]
    else:
        rows = [(drawn.integers(0, 256, (28, 28), dtype=np.uint8),) for _ in range(512)]
    few = rows[: 48 if name == "spam" else 256]
    few = few[: min(model.max_batch, reference.max_batch)]
    difference = max(
        float(abs(a[0] - b[0]).max()) for a, b in zip(model.predict(few), reference.predict(few), strict=True)
    )
    rates, size = {}, 1
    while size <= model.max_batch:
        batches = [rows[at : at + size] for at in range(0, 512 - size + 1, size)]
        count, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < 0.5:
            count += len(model.predict(batches[(count // size) % len(batches)]))
        rates[size] = {"rows_per_s": count / (now - began), "ms": (now - began) / count * size * 1000}
        size *= 2
    facts = {"opened_s": opened_s, "warm_up_s": warm.seconds, "examples": warm.examples}
    return {**facts, "saved_difference": warm.largest_difference, "fresh_difference": difference, "batches": rates}


# --- over HTTP ------------------------------------------------------------------------------------------------------


def environment(models):
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
        "SEATRIAL_MODELS_DIR": str(models),
        "TOKENIZERS_PARALLELISM": "false",
    }


class Server:
    """``python -m seatrial.serve`` and its processes."""

    def __init__(self, name, models, log, port, *options):
        command = [sys.executable, "-m", "seatrial.serve", "--model", name, "--port", str(port), *map(str, options)]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        self.began = time.monotonic()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment(models), start_new_session=True
            )

    def ready_s(self, limit_s):
        """Seconds from start to ready, asked every 20 ms."""
        while time.monotonic() - self.began < limit_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()[-2000:]}")
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=1) as answer:
                    if answer.status == 200:
                        return time.monotonic() - self.began
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.02)
        raise RuntimeError(f"not ready after {limit_s} s:\n{self.log.read_text()[-2000:]}")

    def cpu_s(self):
        """Of all processes of its session."""
        ticks = 0
        for each in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = each.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """SIGTERM; (exit code, seconds). What is left of the session is killed."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = "killed after 10 s"
        seconds = time.monotonic() - began
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return code, seconds


def over_http(name, models, out, options):
    """Readiness, rounds of rising concurrency, overload with a short queue, the answer to one request, the end."""
    from http_load.address import loopback
    from http_load.rounds import measure
    from http_load.samples import samples
    from http_load.table import HEAD, line

    cores = len(os.sched_getaffinity(0))
    clients = max(1, cores // 4) if not options.small else 1
    fronts = options.fronts or max(1, cores - clients - 2)
    found: dict = {"cores": cores, "client_processes": clients, "fronts": fronts, "rounds": []}
    server = Server(name, models, out / f"{name}.log", 8790, "--fronts", fronts, "--queue", 4096)
    try:
        found["ready_s"] = server.ready_s(60)
        address = loopback(server.url)
        requests = samples(address)
        found["request_bytes"] = sum(map(len, requests)) / len(requests)
        body = requests[0].partition(b"\r\n\r\n")[2]
        ask = urllib.request.Request(f"{server.url}/predict", body, {"content-type": "application/json"})
        with urllib.request.urlopen(ask, timeout=10) as answer:
            found["answer"] = json.loads(answer.read())
        watching = watch_power(out / f"{name}.power.csv")
        print(f"{name}: ready after {found['ready_s']:.2f} s\n{HEAD}", flush=True)
        for each in measure(
            address, requests, options.levels, options.seconds, processes=clients, server_cpu_s=server.cpu_s
        ):
            found["rounds"].append(each.as_dict())
            print(line(each), flush=True)
        found["gpu"] = watching()
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
            (out / f"{name}.metrics.txt").write_bytes(answer.read())
    finally:
        found["stop"] = server.stop()
    found["best"] = max(found["rounds"], key=lambda each: each["requests_per_s"])
    within = [each for each in found["rounds"] if each["p99_ms"] <= 10]
    found["best_within_10_ms"] = max(within, key=lambda each: each["requests_per_s"], default=None)
    return found


def watch_power(path):
    """nvidia-smi beside the rounds; a function that ends it and gives watts and utilisation, means and maxima."""
    import shutil

    if not shutil.which("nvidia-smi"):
        return lambda: None
    asked = ["--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
    with path.open("wb") as file:
        process = subprocess.Popen(["nvidia-smi", *asked], stdout=file, stderr=subprocess.DEVNULL)

    def end():
        process.terminate()
        process.wait()
        rows = [line.split(",") for line in path.read_text().splitlines() if line.count(",") == 1]
        watts, use = ([float(row[column]) for row in rows] for column in (0, 1))
        if not watts:
            return None
        return {
            "mean_w": sum(watts) / len(watts),
            "most_w": max(watts),
            "mean_use_pct": sum(use) / len(use),
            "most_use_pct": max(use),
        }

    return end


def overload(name, models, out, options):
    """A queue of 8 rows and 256 clients: 429 for what is too much, 2xx for the rest, and nothing else; then kill -9."""
    from http_load.address import loopback
    from http_load.rounds import measure
    from http_load.samples import samples

    server = Server(name, models, out / f"{name}-overload.log", 8791, "--fronts", 2, "--queue", 8)
    try:
        server.ready_s(60)
        address = loopback(server.url)
        (found,) = measure(address, samples(address), [64 if options.small else 256], 1.0, processes=2)
        server.process.kill()
        server.process.wait()
        time.sleep(1.5)
        left = _children(server.process)
    finally:
        server.stop()
    return {**found.as_dict(), "processes left after kill -9": left}


def _children(process):
    count = 0
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        count += int(fields[3]) == process.pid and fields[0] != "Z"
    return count


def versions():
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "tokenizers", "uvicorn", "uvloop", "httptools", "starlette", "numpy"):
        try:
            facts[name] = __import__(name).__version__
        except (ImportError, AttributeError) as error:
            facts[name] = str(error)
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mnist", help="folder of the IDX files, to train for an epoch")
    parser.add_argument("--messages", help="folder of SMSSpamCollection")
    parser.add_argument("--fronts", type=int)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256, 512])
    parser.add_argument("--only", default="mnist,spam")
    parser.add_argument("--limit", type=float, default=230.0, help="no new part is begun after this many seconds")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.levels, options.seconds = [1, 8, 32], 1.0
    options.out.mkdir(parents=True, exist_ok=True)
    began, results = time.monotonic(), {"versions": versions()}

    def part(label, act):
        if time.monotonic() - began > options.limit:
            results[label] = "left out: no time"
        else:
            start = time.monotonic()
            try:
                results[label] = act()
            except Exception as error:  # noqa: BLE001  the other parts go on
                results[label] = f"failed: {type(error).__name__}: {error}"
            print(f"{label}: {time.monotonic() - start:.1f} s", flush=True)
            if not isinstance(results[label], dict) or "rounds" not in results[label]:
                print(json.dumps(results[label], indent=None)[:1500], flush=True)
        (options.out / "results.json").write_text(json.dumps(results, indent=1))

    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        chosen = options.only.split(",")
        if "mnist" in chosen:
            part("mnist model", lambda: make_mnist(models, options.mnist, None))
        if "spam" in chosen:
            part("spam model", lambda: make_spam(models, options.messages, "small" if options.small else "base"))
        for name in reversed(chosen):
            part(f"{name} over HTTP", lambda name=name: over_http(name, models, options.out, options))
        for name in reversed(chosen):
            part(f"{name} alone", lambda name=name: in_process(name, models, options.out))
        part("overload", lambda: overload(chosen[-1], models, options.out, options))
    print(f"all of it: {time.monotonic() - began:.0f} s", flush=True)


def in_process(name, models, out):
    """``alone`` in a process of its own: its GPU memory and errors end with it."""
    file = out / f"{name}.alone.json"
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import json, serve_on_a_gpu as s; from pathlib import Path; "
    )
    code += f"Path({str(file)!r}).write_text(json.dumps(s.alone({name!r}, {str(models)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(models), timeout=90, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return json.loads(file.read_text())


if __name__ == "__main__":
    main()
