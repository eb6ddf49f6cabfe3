"""An empty model served by LitServe and by seatrial, measured by the same client in the same run, interleaved.

    python benchmarks/serve_beside_litserve.py --venv DIR [--repeats 3] [--seconds 3]

DIR is a virtual environment; it is made, with litserve in it, where it is not there. Prints a table and the ratio.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

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
OURS = """
class Model:
    def predict(self, batch): return batch
"""


def measured(command, port, clients, seconds):
    """A round on a server that is started for it."""
    from seatrial.load.address import Address
    from seatrial.load.rounds import measure
    from seatrial.load.wire import request

    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            body = b'{"input": 1}'
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
    from seatrial.load.table import HEAD, line

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
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder) / "theirs.py", Path(folder) / "serve.py"
        theirs.write_text(THEIRS)
        ours.write_text(OURS)
        ways = {
            "LitServe": [python, theirs, "8795"],
            "seatrial": [sys.executable, "-m", "seatrial.serve", "--model", f"{ours}:Model", "--port", "8795"],
        }
        rates = {name: [] for name in ways}
        print(f"{'':10}{HEAD}", flush=True)
        for _ in range(options.repeats):
            for name, command in ways.items():
                found = measured([str(word) for word in command], 8795, options.clients, options.seconds)
                rates[name].append(found.requests_per_s)
                print(f"{name:10}{line(found)}", flush=True)
    ratio = statistics.median(rates["seatrial"]) / statistics.median(rates["LitServe"])
    print(f"seatrial answers {ratio:.1f} times as many requests a second (medians of {options.repeats})")


if __name__ == "__main__":
    main()
