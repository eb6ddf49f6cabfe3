"""An empty model and digits, served by LitServe and by seatrial, measured by the same client in one run, interleaved.

    python benchmarks/serve_beside_litserve.py --venv DIR [--repeats 3] [--seconds 3]

DIR is a virtual environment; it is made, with litserve in it, where it is not there; torch comes from the environment
that this runs in. digits has random weights, which cost the same; both give it one thread and batches of up to 32 that
wait 2 ms. Prints versions, how slow the machine is (tests/pace.py), a table and the ratios.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests"), str(HERE)]

THEIRS = """
import sys
import litserve

class Empty(litserve.LitAPI):
    def setup(self, device): ...
    def decode_request(self, request): return request["input"]
    def predict(self, x): return x
    def encode_response(self, output): return {"output": output}

if __name__ == "__main__":
    server = litserve.LitServer(Empty(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
"""
THEIR_DIGITS = """
import sys
import litserve
sys.path.append(sys.argv[2])  # torch and numpy, behind what litserve brought along
import numpy, torch
from seatrial.recipes.mnist import network

class Digits(litserve.LitAPI):
    def setup(self, device):
        torch.set_num_threads(1)
        self.network = network(28, 28, 10).to(memory_format=torch.channels_last).eval()
    def decode_request(self, request): return numpy.asarray(request["input"], dtype=numpy.uint8)
    def batch(self, inputs): return numpy.stack(inputs)
    def unbatch(self, output): return list(output)
    def predict(self, batch):
        with torch.inference_mode():
            images = torch.from_numpy(batch).float().div(255).unsqueeze(1).to(memory_format=torch.channels_last)
            return self.network(images).softmax(1).numpy()
    def encode_response(self, output):
        numbers = [round(number, 6) for number in output.tolist()]
        return {"label": int(output.argmax()), "probabilities": numbers}

if __name__ == "__main__":
    api = Digits(max_batch_size=32, batch_timeout=0.002)
    litserve.LitServer(api, accelerator="cpu").run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
"""
OURS = """
class Model:
    def predict(self, batch): return batch
"""


def save_digits(folder):
    """The recipe's network with random weights, as training saves it; one of its images as JSON."""
    import torch

    from seatrial.recipes.mnist import network
    from seatrial.train.saving.examples import Normalisation, image_examples, save_examples
    from seatrial.train.saving.model_files import save_model

    torch.manual_seed(0)
    model, images = network(28, 28, 10), torch.randint(0, 256, (20, 1, 28, 28), dtype=torch.uint8)
    saved = save_model(model, folder, "digits")
    save_examples(image_examples("digits", model, images, Normalisation.of(images), tuple("0123456789")), saved[-1])
    return json.dumps({"input": images[0, 0].tolist()}).encode()


def measured(command, port, body, clients, seconds):
    """A round on a server that is started for it."""
    from http_load.address import Address
    from http_load.rounds import measure
    from http_load.wire import request

    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            ask = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"content-type": "application/json"})
            for _ in range(600):
                try:
                    urllib.request.urlopen(ask, timeout=2).read()
                    break
                except (OSError, urllib.error.URLError):
                    time.sleep(0.1)
            else:
                log.seek(0)
                raise RuntimeError(log.read().decode()[-2000:])
            address = Address("127.0.0.1", port)
            requests = [request(address, "POST", "/predict", body)]
            return next(iter(measure(address, requests, [clients], seconds, processes=1)))
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def main():
    import torch
    from http_load.table import HEAD, line

    from pace import slowness
    from seatrial.common.paired import Sampled, ratio

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    python = options.venv / "bin" / "python"
    if not python.exists():
        venv.create(options.venv, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "litserve"], check=True)
    version = "from importlib.metadata import version; print(version('litserve'))"
    found = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
    print(f"litserve {found}, Python {sys.version.split()[0]}, {len(os.sched_getaffinity(0))} cores")
    with tempfile.TemporaryDirectory() as folder:
        theirs, their_digits, ours = (Path(folder) / name for name in ("theirs.py", "their_digits.py", "serve.py"))
        theirs.write_text(THEIRS)
        their_digits.write_text(THEIR_DIGITS)
        ours.write_text(OURS)
        os.environ["SEATRIAL_MODELS_DIR"] = folder
        digits = save_digits(Path(folder))
        serve = [sys.executable, "-m", "seatrial.serve", "--port", "8795", "--model"]
        ways = {
            ("empty", "LitServe"): ([python, theirs, "8795"], b'{"input": 1}'),
            ("empty", "seatrial"): ([*serve, f"{ours}:Model"], b'{"input": 1}'),
            ("digits", "LitServe"): ([python, their_digits, "8795", Path(torch.__file__).parents[1]], digits),
            ("digits", "seatrial"): ([*serve, "digits"], digits),
        }
        rates = {name: [] for name in ways}
        print(f"{'':17}{HEAD}", flush=True)
        for _ in range(options.repeats):
            for name, (command, body) in ways.items():
                found = measured([str(word) for word in command], 8795, body, options.clients, options.seconds)
                rates[name].append(found.requests_per_s)
                print(f"{' '.join(name):17}{line(found)}  slowness {slowness():.1f}", flush=True)
    for model in ("empty", "digits"):
        pairs = zip(rates[model, "LitServe"], rates[model, "seatrial"], strict=True)
        times = ratio([(Sampled(theirs), Sampled(ours)) for theirs, ours in pairs])
        print(f"{model}: seatrial answers {times.words} times as many requests a second ({options.repeats} in turn)")


if __name__ == "__main__":
    main()
