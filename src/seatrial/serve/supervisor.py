"""Start the fronts, hold the model, and end both together.

The process that was started holds the model. It starts a process for each front, sends it what it needs over a
socketpair, and starts one again that dies.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from seatrial.events import EVENTS_VARIABLE, Served, StepLog
from seatrial.serve import wire
from seatrial.serve.counters import Counters
from seatrial.serve.errors import DeviceLostError, ServeError
from seatrial.serve.model_loop import Batcher, ModelLoop
from seatrial.serve.options import Options
from seatrial.serve.served_model import ServedModel, WarmUp
from seatrial.serve.sockets import STOPPING, StopSignals, listen

#: Restarts in this many seconds after which a front that dies ends the program.
_MOST_RESTARTS, _RESTARTS_S = 5, 60.0
_SOCKET_BYTES = 4 << 20
#: When the model is lost: time for the fronts to write that to their clients.
_LAST_WORDS_S = 0.5
#: Time after the fronts' drain for a batch that is still computed. Together less than a target has (serve.front).
_LAST_BATCH_S = 2.0
#: Between two lines of $SEATRIAL_EVENTS.
_REPORT_EVERY_S = 2.0
#: The model that options name, loaded.
Open = Callable[[Options], ServedModel]


def open_on_device(options: Options) -> ServedModel:
    """Open the model on the GPU, or on the CPU if there is none. Raises TrainError."""
    import torch

    from seatrial.serve.runners.open import open_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":  # threads that wait for each other while fronts are busy cost more than they compute
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - options.fronts))
    return open_model(options.model, device, max_batch=options.max_batch, name=options.name)


class Supervisor:
    """One server, from start to end."""

    def __init__(self, options: Options, began_s: float, open_model: Open) -> None:
        self._options, self._began_s, self._open = options, began_s, open_model
        self._exit_code = 0
        self._listeners = listen(options.host, options.port, options.fronts)
        self._counters = Counters.create(options.fronts + 1, place=options.fronts)  # the last place is the model's
        self._reports = Reports(self._counters)
        self._fronts: dict[int, subprocess.Popen[bytes]] = {}
        self._links: dict[int, socket.socket] = {}
        self._restarts_s: list[float] = []
        self._signals = StopSignals.create()
        self._stopped = threading.Event()
        self._ready_frames = b""

    def run(self) -> int:
        """Serve until the end; return the exit code."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for number in STOPPING:
            signal.signal(number, lambda *_: sys.exit(0))
        for place in range(self._options.fronts):
            self._links[place] = self._start_front(place)
        try:
            loop = self._load()
            threading.Thread(target=self._end_with_fronts, name="end", daemon=True).start()
            self._signals.collect(self._stopped.set)
            loop.send_all(self._ready_frames)
            self._announce()
            loop.run()
        except DeviceLostError as error:
            print(f"the GPU was lost while serving: {error}", file=sys.stderr, flush=True)
            self._exit_code = 1
            time.sleep(_LAST_WORDS_S)
        finally:
            for link in self._links.values():
                link.close()
            for process in self._fronts.values():
                _end_front(process)
        self._reports.emit()
        return self._exit_code

    def _load(self) -> ModelLoop:
        """Open the model and compare it with its examples. Raises TrainError."""
        model = self._open(self._options)
        max_batch = min(self._options.max_batch or model.max_batch, model.max_batch)
        try:
            warm_up = model.warm_up()
        except DeviceLostError as error:
            raise ServeError(str(error)) from error
        self._reports.ready(warm_up)
        if warm_up.examples:
            print(f"{warm_up.examples} saved examples: largest difference {warm_up.largest_difference:.2g}", flush=True)
        else:
            print("no saved examples to compare with", flush=True)
        self._ready_frames = wire.pickled(wire.HELLO, (model.reader, max_batch)) + wire.frame(wire.READY)
        batcher = Batcher(max_batch, self._options.deadline_ms / 1000)
        return ModelLoop(model, self._links, batcher, self._counters, self._replace_front, self._reports.tick)

    def _announce(self) -> None:
        host, port = self._listeners[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        seconds = time.time() - self._began_s
        # 0.0.0.0 in a container is its own address, which nobody reaches; the command line prints the machine's
        where = "" if host in ("0.0.0.0", "::") else f" on http://{shown}:{port}"
        print(f"serving {self._options.name}{where} ready after {seconds:.1f} s", flush=True)

    def _start_front(self, place: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        listener = self._listeners[place]
        numbers = (listener.fileno(), theirs.fileno(), self._signals.descriptor, self._counters.descriptor)
        argv = [sys.executable, "-m", "seatrial.serve.front", *map(str, (*numbers, self._counters.places, place))]
        self._fronts[place] = subprocess.Popen(argv, pass_fds=numbers, stdin=subprocess.DEVNULL)
        theirs.close()
        ours.sendall(wire.pickled(wire.OPTIONS, self._options))
        return ours

    def _replace_front(self, place: int) -> socket.socket | None:
        """Start another front if one has ended, unless the program drains; return its link."""
        self._links.pop(place, None)
        if self._signals.came():
            return None
        code = _end_front(self._fronts[place])
        self._counters.forget(place)
        if self._signals.came():  # while it ended: its listener is closed here
            return None
        now_s = time.monotonic()
        self._restarts_s = [each for each in self._restarts_s if now_s - each < _RESTARTS_S] + [now_s]
        if len(self._restarts_s) > _MOST_RESTARTS:
            raise ServeError(f"the HTTP processes end again and again, the last with {code}", fix="seatrial doctor")
        print(f"an HTTP process ended with {code}; another is started", file=sys.stderr, flush=True)
        link = self._links[place] = self._start_front(place)
        link.sendall(self._ready_frames)
        return link

    def _end_with_fronts(self) -> None:
        """End the program from a thread: drained fronts leave nothing to compute, but a batch that they gave up."""
        self._stopped.wait()
        print("draining: requests that have come are still answered", flush=True)
        for listener in self._listeners:  # else a connection to one that its front has closed would hang
            listener.close()
        for process in list(self._fronts.values()):
            process.wait()
        time.sleep(_LAST_BATCH_S)  # without such a batch the main thread ends the program within this
        self._reports.emit()
        os._exit(self._exit_code)


class Reports:
    """Write what was served to $SEATRIAL_EVENTS every two seconds and at the end, once the model is ready."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        path = os.environ.get(EVENTS_VARIABLE)
        self._log = StepLog(path) if path else None
        self._warm_up: WarmUp | None = None
        self._ready_s = self._next_s = 0.0

    def ready(self, warm_up: WarmUp) -> None:
        """Start the clock: requests are accepted from now on."""
        self._warm_up = warm_up
        self._ready_s = time.monotonic()

    def tick(self) -> None:
        """Write a line if it is time."""
        if self._log is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REPORT_EVERY_S
            self.emit()

    def emit(self) -> None:
        """Write a line, with numbers since the start; a full disk costs the line and no request."""
        if self._log is None or self._warm_up is None:
            return
        totals = self._counters.totals()
        served = Served(
            requests=totals.inferences,
            errors={str(status): count for status, count in totals.errors.items()},
            p50_ms=totals.percentile_ms(50),
            p95_ms=totals.percentile_ms(95),
            p99_ms=totals.percentile_ms(99),
            batches={str(size): count for size, count in totals.batches.items()},
            queue_peak=totals.queue_peak,
            seconds=round(time.monotonic() - self._ready_s, 3),
            warm_up_s=round(self._warm_up.seconds, 3),
            examples=self._warm_up.examples,
            largest_difference=self._warm_up.largest_difference,
        )
        try:
            self._log.report(served)
        except OSError as error:
            print(f"a report was not written: {error.strerror}", file=sys.stderr, flush=True)


def _end_front(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
