"""A dashboard over made-up runs, served as ``seatrial dashboard`` does."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import contextmanager

from fakes import FakeGpu, FakeNvml, a_plan
from seatrial.monitor.app import Api, Feed, dashboard_app
from seatrial.monitor.prometheus import Exposition
from seatrial.monitor.reading import ContainerNames, MachineReader
from seatrial.monitor.run_view import provisional
from seatrial.receipt.judge import write_receipt
from seatrial.runs.run import Run
from seatrial.runs.store import Projects
from seatrial.system import names
from seatrial.system.host import Host
from seatrial.web import server

NO_ENGINES = {"SEATRIAL_DOCKER": "/no/docker", "SEATRIAL_PODMAN": "/no/podman"}
NOBODY = names.Names()


def a_run(store, id, name=None, stdout=b"", offset=0.0, ended=False):
    """A run with a loss curve, as its folder would be."""
    folder = store.root / id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(a_plan(folder, run_id=id).model_dump_json())
    (folder / "stdout.log").write_bytes(stdout)
    lines = [{"t": 1e9, "type": "target.started", "source": "agent", "pid": 1}]
    lines += [
        {"t": 1e9 + n, "type": "step", "source": "target", "step": n, "loss": math.exp(-n / 9) + offset, "images": 64}
        for n in range(30)
    ]
    if not ended:
        finding = {"id": "hang", "severity": "warning", "message": "<b>hang</b>", "cause": "c", "fix": "f"}
        lines.append({"t": 1e9 + 30, "type": "finding", "source": "agent", **finding})
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if name:
        (folder / "name").write_text(name)
    if ended:
        write_receipt(folder, provisional(Run(folder, folder)))
        summary = {"id": id, "target": "train.py", "exit_code": 0, "metrics": {"loss": math.exp(-29 / 9) + offset}}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@contextmanager
def serving(store, token=None, interval_s=0.3, hidden=NOBODY, environ=None):
    """Yield the address and the fake GPU. With an environment: every project that it leads to."""
    gpu = FakeGpu(utilization_pct=41)
    reader = MachineReader(ContainerNames(Host(NO_ENGINES)), pynvml=FakeNvml([gpu]))
    exposition = Exposition(list)
    feed = Feed(reader.read, interval_s=interval_s, on_reading=exposition.renew)
    sock = server.listen("dashboard", "127.0.0.1", 0)
    projects = Projects(store, None if environ is None else Host(environ))
    made = dashboard_app(Api(projects, feed, hidden), feed, exposition, token)
    running = server.Server(made, on_stop=feed.stop)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/", gpu
    finally:
        running.should_exit = True
        thread.join(120)
