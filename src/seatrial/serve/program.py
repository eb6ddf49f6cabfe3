"""The program: fronts, the model, and their common end.

The process that was started holds the model. With fronts it starts a process for each, tells them over socketpairs what
they need, and starts one again that dies. Without, HTTP runs in its main thread and the model in another.
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
from pathlib import Path

from seatrial.serve import wire
from seatrial.serve.batcher import Batcher
from seatrial.serve.computing import Computing
from seatrial.serve.counts import Counts
from seatrial.serve.errors import DeviceLostError, ServeError
from seatrial.serve.listening import listen
from seatrial.serve.options import Options
from seatrial.serve.reports import Reports
from seatrial.serve.served_model import ServedModel
from seatrial.serve.stop_signals import STOPPING, StopSignals

#: Fronts that die more often than so many times in so many seconds are not started again: the program ends.
_MOST_RESTARTS, _RESTARTS_S = 5, 60.0
_SOCKET_BYTES = 4 << 20
#: When the model is lost: time for the fronts to write that to their clients.
_LAST_WORDS_S = 0.5
#: After the fronts' drain: a batch that is still computed has so long. Together less than a target has (serve.front).
_LAST_BATCH_S = 2.0


#: The model that options name, loaded.
Open = Callable[[Options], ServedModel]


def open_on_device(options: Options) -> ServedModel:
    """On the GPU where there is one. Raises ServeError."""
    import torch

    from seatrial.serve.models import open_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":  # threads that wait for each other beside busy fronts cost more than they compute
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - max(1, options.fronts)))
    return open_model(options.model, device, max_batch=options.max_batch, name=options.name)


class Program:
    """One server, from start to end.

    Attributes:
        exit_code: of the program.
    """

    def __init__(self, options: Options, began_s: float, open_model: Open) -> None:
        self._options, self._began_s, self._open = options, began_s, open_model
        self.exit_code = 0
        places = max(1, options.fronts)
        self._listeners = listen(options.host, options.port, places)
        self._counts = Counts.create(places + 1, place=places)  # the last place is the model's
        self._reports = Reports(self._counts)
        self._fronts: dict[int, subprocess.Popen[bytes]] = {}
        self._links: dict[int, socket.socket] = {}
        self._restarts_s: list[float] = []
        self._signals = StopSignals.create()
        self._stopped = threading.Event()
        self._ready_frames = b""

    def run(self) -> int:
        """Until the end; the exit code."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if self._options.fronts:
            self._with_fronts()
        else:
            self._in_one_process()
        self._reports.emit()
        return self.exit_code

    def _with_fronts(self) -> None:
        for number in STOPPING:
            signal.signal(number, self._stop_loading)
        for place in range(self._options.fronts):
            self._links[place] = self._start_front(place)
        try:
            computing = self._load()
            threading.Thread(target=self._end_with_fronts, name="end", daemon=True).start()
            self._signals.collect(self._stopped.set)
            self._announce(computing)
            self._compute(computing)
        finally:
            for link in self._links.values():
                link.close()
            for process in self._fronts.values():
                self._end_front(process)

    def _in_one_process(self) -> None:
        from seatrial.serve import front  # with the web server, which otherwise the fronts alone load

        ours, theirs = _pair()
        self._links[0] = ours
        counts = Counts(self._counts.descriptor, self._counts.places, 0)
        place = front.Place(self._options, self._listeners[0], theirs, counts, signals=None)
        failure: list[BaseException] = []

        def hold() -> None:
            try:
                computing = self._load()
                self._announce(computing)
                self._compute(computing)
            except BaseException as error:  # noqa: BLE001 — raised again in the main thread
                failure.append(error)
            finally:
                ours.close()

        sys.setswitchinterval(0.0005)
        thread = threading.Thread(target=hold, name="model", daemon=True)
        thread.start()
        code = front.run(place)
        thread.join(_LAST_BATCH_S)
        if failure:
            raise failure[0]
        self.exit_code = self.exit_code or code

    def _load(self) -> Computing:
        """Raises ServeError."""
        model = self._open(self._options)
        most = min(self._options.max_batch or model.max_batch, model.max_batch)
        warm_up = model.warm_up()
        self._reports.ready(warm_up)
        if warm_up.examples:
            print(f"{warm_up.examples} saved examples: largest difference {warm_up.largest_difference:.2g}", flush=True)
        else:
            print("no saved examples to compare with", flush=True)
        reader = model.reader
        self._ready_frames = wire.pickled(wire.HELLO, (reader, most)) + wire.frame(wire.READY)
        batcher = Batcher(most, self._options.deadline_ms / 1000)
        return Computing(model, self._links, batcher, self._counts, self._front_gone, self._reports.tick)

    def _announce(self, computing: Computing) -> None:
        computing.send_all(self._ready_frames)
        host, port = self._listeners[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        seconds = time.time() - self._began_s
        # every address: in a container its own, where nobody is; the command line says the one of its machine
        where = "" if host in ("0.0.0.0", "::") else f" on http://{shown}:{port}"
        print(f"serving {self._options.name}{where} ready after {seconds:.1f} s", flush=True)

    def _compute(self, computing: Computing) -> None:
        try:
            computing.run()
        except DeviceLostError as error:
            print(f"the GPU was lost while serving: {error}", file=sys.stderr, flush=True)
            self.exit_code = 1
            time.sleep(_LAST_WORDS_S)

    def _start_front(self, place: int) -> socket.socket:
        ours, theirs = _pair()
        listener = self._listeners[place]
        numbers = (listener.fileno(), theirs.fileno(), self._signals.descriptor, self._counts.descriptor)
        argv = [sys.executable, "-m", "seatrial.serve.front", *map(str, (*numbers, self._counts.places, place))]
        self._fronts[place] = subprocess.Popen(argv, pass_fds=numbers, stdin=subprocess.DEVNULL)
        theirs.close()
        ours.sendall(wire.pickled(wire.OPTIONS, self._options))
        return ours

    def _front_gone(self, place: int) -> socket.socket | None:
        """A front's link has ended: after a drain that is meant, else another takes its place."""
        self._links.pop(place, None)
        if self._options.fronts == 0 or self._signals.came():
            return None
        code = self._end_front(self._fronts[place])
        self._counts.forget(place)
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

    def _stop_loading(self, *_: object) -> None:
        raise SystemExit(0)

    def _end_with_fronts(self) -> None:
        """A thread: fronts that have drained leave nothing to compute, but a batch may go on that they gave up."""
        self._stopped.wait()
        print("draining: what has come is still answered", flush=True)
        for listener in self._listeners:  # else a connection to one that its front has closed would hang
            listener.close()
        for process in list(self._fronts.values()):
            process.wait()
        time.sleep(_LAST_BATCH_S)  # without such a batch the main thread ends the program within this
        self._reports.emit()
        os._exit(self.exit_code)

    def _end_front(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
    return ours, theirs


def started_s() -> float:
    """When this process was started, as Unix time: imports are part of getting ready."""
    stat = Path("/proc/self/stat").read_text(errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
