"""Run the trials of a search as runs of this machine, some at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

from seatrial.backends.base import State
from seatrial.errors import DiskError, GpusHeldError, ImageError, SeatrialError
from seatrial.images.build.progress import BuildReporter
from seatrial.job.model import Job
from seatrial.job.plan import Gpu
from seatrial.job.units import format_bytes
from seatrial.probe.nvml import ComputeProcess, NvmlError, compute_processes
from seatrial.receipt.model import Receipt
from seatrial.runs import launch
from seatrial.runs.finish import finalise, handle_of
from seatrial.runs.following.output import Stream
from seatrial.runs.following.watch import follow, request_stop
from seatrial.runs.launch import Prepared
from seatrial.runs.leases import backend_of
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore
from seatrial.search.metrics import Reading, ending_of, problem_of, series_of, unreported
from seatrial.search.request import Objective
from seatrial.search.search import Say, Search
from seatrial.search.trial import Ending, Trial
from seatrial.system.memo import remembering

#: How often a trial that waits for a GPU looks again.
_GPU_INTERVAL_S = 1.0

#: How often the terminal's line is drawn anew.
_LOOK_S = 0.2

#: Ctrl-C reaches the engine's program that builds or pulls as well, and its failure may be here before the signal is.
_INTERRUPT_S = 0.5

#: GPUs are chosen, and an image is built, by one at a time.
_STARTING = threading.Lock()

#: The driver frees a killed process's memory within so long; what is there later is left behind.
_LEFT_S = 10.0
_LEFT_INTERVAL_S = 0.25


def run_trials(search: Search) -> None:
    """Ask, run and tell until there are no more; then raise what ended the search early, if something did."""
    lost = search.study.take_lost()
    freed: Queue[None] = Queue()  # by each trial once, when it has been told; its container is removed after that
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
    free_once = [freed]

    def free() -> None:
        if free_once:
            free_once.pop().put(None)

    try:
        run_one(search, trial, free)
    finally:
        free()


def run_one(search: Search, trial: Trial, told: Callable[[], None] = lambda: None) -> None:
    """See one trial through: a new one is started, one whose searcher went is followed to its end.

    Args:
        told: called when its end stands in the study, before its container is removed.
    """
    run = _left_behind(search, trial)
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
            backend = backend_of(handle, search.host)
            request_stop(
                run, backend, handle, run.plan().job.grace_s, origin="search", why="the study cannot be written"
            )
        raise
    is_told = threading.Event()

    def judged(receipt: Receipt) -> None:
        is_told.set()
        tell(search, trial, ending_as_read(receipt, search.objective, reading))
        if not gpus:  # without a GPU the next trial need not wait until the container is removed
            told()

    receipt = finalise(run, search.host, ended=state, judged=judged)
    if (left := leftover_processes(run, gpus, search.over)) is not None:
        search.say(f"trial {trial.number}: {left}")
    if receipt is None:  # the engine does not know how it ended, or it still lives: another searcher asks again
        return
    if not is_told.is_set():  # another process has made the receipt
        tell(search, trial, ending_as_read(receipt, search.objective, reading))


def _left_behind(search: Search, trial: Trial) -> Run | None:
    """The run that this trial has already, if it ever started. What never started is begun anew."""
    if trial.run_id is None:
        return None
    run = RunStore(search.job.project, search.host).run(trial.run_id)
    if run.folder.is_dir() and handle_of(run, search.host) is not None:
        search.say(f"trial {trial.number}: its searcher has gone; following run {run.id}")
        return run
    return None


def start_trial(search: Search, trial: Trial) -> Run | None:
    """The trial's run, started; None where it could not be, which has been told."""
    told = False
    while not search.over.is_set():
        try:
            with _STARTING:
                if search.over.is_set():
                    break
                prepared = prepare_run(search, search.job_of(trial))
                search.study.begin(trial.number, prepared.run.id)
                if not start_run(search, prepared):
                    break
                return prepared.run
        except GpusHeldError as error:
            if not told:
                told = True
                search.say(f"trial {trial.number} waits for a GPU: {error.message}")
            search.over.wait(_GPU_INTERVAL_S)
        except KeyboardInterrupt:
            break
        except SeatrialError as error:
            _not_started(search, trial, error)
            return None
    search.study.again(trial.number)
    return None


def prepare_run(search: Search, job: Job) -> Prepared:
    """Prepare a run, its ready image pulled first if it is not there.

    Raises SeatrialError; KeyboardInterrupt: the search is over, and so is the pull.
    """
    return launch.prepare(job, search.host, building=lambda: _building(search))


def start_run(search: Search, prepared: Prepared) -> bool:
    """Start a prepared run, its image built first if it is not there. False: the search is over, and so is the build.

    Raises SeatrialError.
    """
    try:
        with _building(search) as tell:
            launch.start(prepared, search.host, launch.without_cached(tell))
    except KeyboardInterrupt:
        return False
    return True


@contextmanager
def _building(search: Search) -> Iterator[Say]:
    """What takes the lines of a build or a pull. KeyboardInterrupt ends either once the search is over."""
    with search.building() if search.building is not None else _told_by(search.say) as tell:

        def progress(line: str) -> None:
            if search.over.is_set():
                raise KeyboardInterrupt
            tell(line)

        try:
            yield progress
        except ImageError:
            if search.over.wait(_INTERRUPT_S):
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _told_by(say: Say) -> Iterator[Say]:
    with BuildReporter(say, say) as reporter:
        yield reporter.line


def _not_started(search: Search, trial: Trial, error: SeatrialError) -> None:
    """What keeps the first trial from starting keeps them all; later it is this one's failure."""
    if any(one.state in ("done", "pruned") for one in search.study.trials()):
        tell(search, trial, Ending("failed", outcome=error.message, exit_code=error.exit_code))
        return
    search.study.again(trial.number)
    search.end(error)


def follow_trial(search: Search, trial: Trial, run: Run, *, just_started: bool) -> tuple[Reading | None, State | None]:
    """Until its end: reports are written down, and it is stopped where it falls behind or the time is over."""
    series = search.study.get("series")
    reading = Reading(run, search.objective, series) if search.objective is not None else None
    known = len(trial.reports)
    asked_to_stop = threading.Event()

    def look() -> None:
        for step, value in reading.new() if reading is not None else ():
            why = search.report(trial, step, value) if step > known else None
            if why is not None and not asked_to_stop.is_set():
                asked_to_stop.set()
                stop_run(search, run, "pruner", why)
        if search.killed.is_set() and (handle := run.handle()) is not None:
            backend_of(handle, search.host).kill(handle)
        if not asked_to_stop.is_set() and (stop := search.why_stop()) is not None:
            asked_to_stop.set()
            stop_run(search, run, *stop)

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
    """How a trial that was followed ended."""
    if reading is None:
        return ending_of(receipt, objective)
    return ending_of(receipt, objective, reading.last_printed, diverged=reading.diverged, series=reading.series)


def stop_run(search: Search, run: Run, origin: str, why: str | None) -> None:
    """SIGTERM, in a thread of its own: stopping waits until the run has ended."""
    handle = run.handle()
    if handle is None:
        return
    backend = backend_of(handle, search.host)
    arguments = (run, backend, handle, run.plan().job.grace_s)
    threading.Thread(target=request_stop, args=arguments, kwargs={"origin": origin, "why": why}, daemon=True).start()


def tell(search: Search, trial: Trial, ending: Ending) -> None:
    """Write the end down, say it, and look whether it makes sense to go on."""
    objective = search.objective
    silent = objective is not None and ending.state == "done" and ending.value is None
    if objective is not None and silent:
        ending = Ending(**{**vars(ending), "state": "failed", "outcome": f"reported no {objective.metric}"})
    search.study.tell(trial.number, ending)
    trials = search.study.trials()
    now = search.study.trial(trial.number)
    value = f"{objective.metric} {now.value:.4g}, " if objective is not None and now.value is not None else ""
    search.say(f"trial {now.number} ({now.label}): {value}{ending.outcome}")
    if objective is None:
        return
    if ending.value is not None and objective.pattern is None and search.study.get("series") is None:
        search.study.put("series", series_of(objective, ending))
    if silent and all(one.value is None for one in trials):
        search.end(unreported(objective, now, _last_line(search, now)))
    elif (problem := problem_of(trials)) is not None:
        search.end(problem)


def _last_line(search: Search, trial: Trial) -> str:
    """What it printed last."""
    run = RunStore(search.job.project, search.host).run(trial.run_id or "")
    try:
        lines = (run.folder / "stdout.log").read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""


def leftover_processes(run: Run, gpus: Sequence[Gpu], hurry: threading.Event) -> str | None:
    """What an ended run has left on its GPUs, in words with the command that shows it; None: nothing.

    Args:
        hurry: set: do not wait for the driver.
    """
    deadline = time.monotonic() + _LEFT_S
    while found := [(gpu, process) for gpu in gpus for process in _listed(gpu.uuid) if _belongs(process.pid, run)]:
        if time.monotonic() >= deadline or hurry.is_set():
            gpu, process = found[0]
            held = f" with {format_bytes(process.memory_bytes)}" if process.memory_bytes else ""
            who = f"process {process.pid} of the ended run is still on GPU {gpu.mig or gpu.index}{held}"
            return f"{who}; see nvidia-smi, then kill {process.pid}"
        hurry.wait(_LEFT_INTERVAL_S)
    return None


def _belongs(pid: int, run: Run) -> bool:
    """By its container's ID in its cgroup, or by the run's ID in its environment, which a process of ours inherits."""
    handle = run.handle()
    for name in ("cgroup", "environ"):
        try:
            told = Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if run.id.encode() in told or (handle is not None and len(handle.id) == 64 and os.fsencode(handle.id) in told):
            return True
    return False


def _listed(uuid: str) -> list[ComputeProcess]:
    try:
        return compute_processes(uuid)
    except NvmlError:
        return []
