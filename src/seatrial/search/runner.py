"""Run the trials of a search as runs of this machine, some at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from queue import Empty, Queue

from seatrial.backends.base import State
from seatrial.errors import DiskError, GpusHeldError, ImageError, SeatrialError, fallback
from seatrial.images.build.progress import BuildReporter
from seatrial.job.plan import Gpu
from seatrial.job.units import format_bytes
from seatrial.probe.nvml import ComputeProcess, NvmlError, compute_processes
from seatrial.probe.processes import file_bytes
from seatrial.receipt.model import Receipt
from seatrial.runs import launch
from seatrial.runs.launch import Prepared
from seatrial.runs.leases import backend_of, handle_of
from seatrial.runs.run import Run
from seatrial.runs.status import finalise
from seatrial.runs.store import RunStore
from seatrial.runs.streams import Stream
from seatrial.runs.watch import follow, request_interrupt, request_stop
from seatrial.search.metrics import Reading, ending_of
from seatrial.search.request import Objective
from seatrial.search.search import Note, Search
from seatrial.search.trial import Ending, Trial
from seatrial.system.command import remembering

#: Interval between a waiting trial's looks for a GPU.
_GPU_INTERVAL_S = 1.0
#: Interval between updates of the terminal's line.
_LOOK_S = 0.2
#: Ctrl-C reaches the engine's program that builds or pulls as well, and its failure may be here before the signal is.
_INTERRUPT_S = 0.5
#: GPUs are chosen, and an image is built, by one at a time.
_STARTING = threading.Lock()
#: The driver frees a killed process's memory within this time.
_LEFT_S = 10.0
_LEFT_INTERVAL_S = 0.25


def run_trials(search: Search) -> None:
    """Run trials until none are left, then raise the error of a trial that could not be followed."""
    lost = search.study.take_lost()
    freed: Queue[None] = Queue()  # an item for each trial when its end is recorded; its container is removed after that
    busy, running = 0, []
    with remembering(), ThreadPoolExecutor(max_workers=2 * search.parallel) as pool:
        try:
            while True:
                while busy < search.parallel and (trial := lost.pop(0) if lost else search.ask()) is not None:
                    running.append(pool.submit(_run_and_free, search, trial, freed))
                    busy += 1
                if not busy:
                    break
                with suppress(Empty):
                    freed.get(timeout=_LOOK_S)
                    busy -= 1
                search.tick()
                for future in [future for future in running if future.done()]:
                    running.remove(future)
                    future.result()
        except BaseException:
            search.over.set()
            raise
    for future in running:
        future.result()


def _run_and_free(search: Search, trial: Trial, freed: Queue[None]) -> None:
    free = cache(partial(freed.put, None))  # once, however often it is called
    try:
        _run_one(search, trial, free)
    finally:
        free()


def _run_one(search: Search, trial: Trial, free: Callable[[], None]) -> None:
    """Start a new trial, or follow the run of a lost one, to its end. ``free``: called before its container goes."""
    run = _run_of_lost(search, trial)
    just_started = run is None
    if run is None:
        run = start_trial(search, trial)
    if run is None:
        return
    gpus = run.plan().gpus
    try:
        reading, state = follow_trial(search, trial, run, just_started=just_started)
    except DiskError:  # nobody would follow it from here on
        if (handle := run.handle()) is not None:
            why = "the study cannot be written"
            grace_s = run.plan().job.grace_s
            request_stop(run, backend_of(handle, search.host), handle, grace_s, origin="search", why=why)
        raise
    recorded = threading.Event()

    def judged(receipt: Receipt) -> None:
        recorded.set()
        search.end_trial(trial, ending_as_read(receipt, search.objective, reading))
        if not gpus:  # without a GPU the next trial need not wait until the container is removed
            free()

    receipt = finalise(run, search.host, ended=state, judged=judged)
    if (left := leftover_processes(run, gpus, search.over)) is not None:
        search.note(f"trial {trial.number}: {left}")
    if receipt is not None and not recorded.is_set():  # another process has made the receipt
        search.end_trial(trial, ending_as_read(receipt, search.objective, reading))


def _run_of_lost(search: Search, trial: Trial) -> Run | None:
    """Return the run that this trial has already; None if it never started."""
    run = RunStore(search.job.project, search.host).run(trial.run_id) if trial.run_id else None
    if run is None or not run.folder.is_dir() or handle_of(run, search.host) is None:
        return None
    search.note(f"trial {trial.number}: its searcher has gone; following run {run.id}")
    return run


def start_trial(search: Search, trial: Trial) -> Run | None:
    """Start the trial's run; return None if that failed or the search is over, which is recorded."""
    waits = False
    while not search.over.is_set():
        try:
            with _STARTING:
                if search.over.is_set():
                    break
                prepared = launch.prepare(search.job_of(trial), search.host, building=lambda: _building(search))
                search.study.begin(trial.number, prepared.run.id)
                if not start_run(search, prepared):
                    break
                return prepared.run
        except GpusHeldError as error:
            if not waits:
                waits = True
                search.note(f"trial {trial.number} waits for a GPU: {error.message}")
            search.over.wait(_GPU_INTERVAL_S)
        except KeyboardInterrupt:
            break
        except SeatrialError as error:
            search.not_started(trial, error)
            return None
    search.study.again(trial.number)
    return None


@fallback(False, on=KeyboardInterrupt)
def start_run(search: Search, prepared: Prepared) -> bool:
    """Start a prepared run, image included; return False if the search ended first. Raises SeatrialError."""
    with _building(search) as progress:
        launch.start(prepared, search.host, launch.without_cached(progress))
    return True


@contextmanager
def _building(search: Search) -> Iterator[Note]:
    """Receive the output of a build or a pull, and end it by KeyboardInterrupt once the search is over."""
    with search.building() if search.building is not None else _reported(search.note) as write:

        def progress(line: str) -> None:
            if search.over.is_set():
                raise KeyboardInterrupt
            write(line)

        try:
            yield progress
        except ImageError:
            if search.over.wait(_INTERRUPT_S):
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _reported(note: Note) -> Iterator[Note]:
    with BuildReporter(note, note) as reporter:
        yield reporter.line


def follow_trial(search: Search, trial: Trial, run: Run, *, just_started: bool) -> tuple[Reading | None, State | None]:
    """Follow a run to its end: record its reports, and stop it when it falls behind or the time is over."""
    reading = Reading(run, search.objective, search.study.get("series")) if search.objective is not None else None
    known = len(trial.reports)
    stopping = False

    def look() -> None:
        nonlocal stopping
        stop: tuple[str, str | None] | None = None
        for step, value in reading.new() if reading is not None else ():
            why = search.report(trial, step, value) if step > known else None
            stop = stop or (("pruner", why) if why is not None else None)
        if search.killed.is_set() and (handle := run.handle()) is not None:
            backend_of(handle, search.host).kill(handle)
        stop = stop or search.why_stop()
        if stop is not None and not stopping:
            stopping = True
            _stop_run(search, run, *stop)

    def output(stream: Stream, data: bytes) -> None:
        if reading is not None:
            reading.output(stream, data)

    state = follow(run, output, search.host, just_started=just_started, between_looks=look)
    if reading is not None:
        reading.finish()
        for step, value in reading.new():
            search.study.report(trial.number, step, value)
    return reading, state


def ending_as_read(receipt: Receipt, objective: Objective | None, reading: Reading | None) -> Ending:
    """Return how a trial that was followed ended."""
    if reading is None:
        return ending_of(receipt, objective)
    return ending_of(receipt, objective, reading.last_printed, diverged=reading.diverged, series=reading.series)


def _stop_run(search: Search, run: Run, origin: str, why: str | None) -> None:
    """Send SIGTERM, or SIGINT as by Ctrl-C, in a thread of its own: stopping waits until the run has ended."""
    if (handle := run.handle()) is None:
        return
    arguments = (run, backend_of(handle, search.host), handle, run.plan().job.grace_s)
    by_ctrl_c = origin == "user" and search.by_ctrl_c
    request = request_interrupt if by_ctrl_c else partial(request_stop, origin=origin, why=why)
    threading.Thread(target=request, args=arguments, daemon=True).start()


def leftover_processes(run: Run, gpus: Sequence[Gpu], hurry: threading.Event) -> str | None:
    """Return a sentence on the process that an ended run has left on its GPUs, or None, at once if ``hurry`` is set."""
    deadline = time.monotonic() + _LEFT_S
    on_gpu = fallback(list[ComputeProcess](), on=NvmlError)(compute_processes)
    while found := [(gpu, process) for gpu in gpus for process in on_gpu(gpu.uuid) if _belongs(process.pid, run)]:
        if time.monotonic() >= deadline or hurry.is_set():
            gpu, process = found[0]
            held = f" with {format_bytes(process.memory_bytes)}" if process.memory_bytes else ""
            who = f"process {process.pid} of the ended run is still on GPU {gpu.mig or gpu.index}{held}"
            return f"{who}; see nvidia-smi, then kill {process.pid}"
        hurry.wait(_LEFT_INTERVAL_S)
    return None


def _belongs(pid: int, run: Run) -> bool:
    """Find the container's ID in the process's cgroup, or the run's ID in its environment, which children inherit."""
    handle = run.handle()
    text = b"".join(file_bytes(f"/proc/{pid}/{name}") for name in ("cgroup", "environ"))
    return run.id.encode() in text or (handle is not None and len(handle.id) == 64 and handle.id.encode() in text)
