"""The scheduler: stages start when what they need is done and a GPU is free; one that fails ends only what needs it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from seatrial.errors import EXIT_DONE, EXIT_INTERRUPTED, GpusHeldError, SeatrialError
from seatrial.job.model import Job
from seatrial.job.notify import Notify
from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.lines import Lines
from seatrial.pipelines.request import Front
from seatrial.pipelines.stages.decide import Decision, decide
from seatrial.pipelines.stages.fingerprint import difference, digest_of
from seatrial.pipelines.stages.graph import Graph, Stage
from seatrial.pipelines.stages.one_stage import left_over, see_through
from seatrial.pipelines.stages.record import Result
from seatrial.pipelines.stages.servers import decide_server, serve_through, stop_earlier
from seatrial.pipelines.stages.shared_gpus import would_share
from seatrial.pipelines.stages.workshop import Workshop
from seatrial.runs import launch, run_actions
from seatrial.runs.run import Run
from seatrial.runs.serving import saying_when_ready

#: How often a stage that waits for a GPU looks again, should nobody tell it.
GPU_INTERVAL_S = 2.0

#: Stages at once; each is a thread that mostly waits. GPUs and memory are other people's limits.
MOST_AT_ONCE = 32


class Execution:
    """One ``seatrial up`` of some stages.

    Args:
        forced: names of stages that run even if nothing has changed.
        told: who is told of the end of all; a stage whose table names others tells those of its own.
    """

    def __init__(
        self,
        graph: Graph,
        shop: Workshop,
        groups: GroupStore,
        group: Group,
        front: Front,
        forced: Collection[str],
        told: Notify,
    ) -> None:
        self.graph, self.shop, self.groups, self.group, self.front = graph, shop, groups, group, front
        self.forced, self.told = forced, told
        self.done: dict[str, Result] = {}
        self.bad: dict[str, str] = {}  # failed, stopped or skipped → how
        self.exit_code = EXIT_DONE
        self._live: dict[str, Run] = {}
        self._starting = threading.Lock()  # GPUs are chosen, and an image is built, by one at a time
        self._freed = threading.Event()
        self._presses = 0
        self._cut_short = False  # tasks were stopped: a server ends in no other way
        self._tasks = 0  # that have not ended
        self._serving: set[str] = set()  # servers that answer
        self._lines = Lines(front, [member.name for member in group.members])

    def run(self, stages: Sequence[Stage], settled: Callable[[], None] = lambda: None) -> int:
        """See all of them through; the exit code: 0, or that of the first stage that failed.

        Args:
            settled: called when nothing but servers that answer is left; perhaps more than once.
        """
        waiting = {stage.name: stage for stage in stages}
        running: dict[Future[Result], Stage] = {}
        with self._interruptible(), ThreadPoolExecutor(max_workers=MOST_AT_ONCE) as pool:
            while waiting or running:
                for stage in list(waiting.values()):
                    if self._may_start(stage, waiting):
                        running[pool.submit(self._one, waiting.pop(stage.name))] = stage
                self._tasks = sum(stage.serve is None for stage in (*waiting.values(), *running.values()))
                if not self._tasks and all(stage.name in self._serving for stage in running.values()):
                    self.shop.digests.save()
                    settled()
                if not running:
                    continue  # all that waited was skipped
                for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    self._ended(running.pop(future), future)
        self.shop.digests.save()
        return EXIT_INTERRUPTED if self._cut_short else self.exit_code

    def _may_start(self, stage: Stage, waiting: dict[str, Stage]) -> bool:
        """Whether all it needs is done. One that can never start is taken out of ``waiting``."""
        broken = next((need for need in stage.needs if need in self.bad), None)
        if broken is not None or self._presses:
            state = "skipped" if broken else "stopped"
            why = f"{broken} {self.bad[broken]}" if broken else "stopped before it started"
            self.bad[stage.name] = "was skipped" if broken else "was stopped"
            self._note(stage, state=state, why=why)
            if broken and not self._presses:
                self.front.say(f"{stage.name}: not started: {why}")
            del waiting[stage.name]
            return False
        return all(need in self.done for need in stage.needs)

    def _ended(self, stage: Stage, future: Future[Result]) -> None:
        self._live.pop(stage.name, None)
        self._lines.end(stage.name)
        self._freed.set()
        error = future.exception()
        if error is None:
            self.done[stage.name] = future.result()
            return
        stopped = isinstance(error, KeyboardInterrupt) or bool(self._presses)
        if not stopped and not isinstance(error, (SeatrialError, OSError)):
            raise error
        code = error.exit_code if isinstance(error, SeatrialError) else 5
        words = error.message if isinstance(error, SeatrialError) else str(error) or "stopped"
        self.bad[stage.name] = "was stopped" if stopped else "failed"
        self._note(stage, state="stopped" if stopped else "failed", why=words, exit_code=code, ended_at=time.time())
        self.exit_code = self.exit_code or code
        self.front.say(f"{stage.name}: {'stopped' if stopped else f'failed: {words}'}")
        for line in (getattr(error, "cause", None), getattr(error, "run", None)):
            if line and not stopped:
                self.front.say(f"{stage.name}:   {line}")

    # ------------------------------------------------------------------ in a thread of its own

    def _one(self, stage: Stage) -> Result:
        if stage.serve is not None:
            return self._serve(stage)
        job = self.graph.job(stage)
        last = self.shop.records.last(stage.name)
        forced = stage.name in self.forced
        decision = decide(stage, job, last, self.done, self.shop.digests, self.shop.environ, force=forced)
        begun = self._begun(stage, decision)
        if begun is None and decision.holds is not None:
            self.unchanged(stage, decision.holds, decision)
            return decision.holds
        if begun is not None:
            run, result = begun
            self.front.say(f"{stage.name}: goes on with {run.id}, which was begun before")
            self._running(stage, run, decision)
        else:
            run, result = self._start(stage, job, decision)
        self._live[stage.name] = run
        if self._presses:  # it started just when the user pressed Ctrl-C
            self._stop(run)
        write = self._lines.writer(stage.name)
        result = see_through(
            self.shop, stage, job, run, result, write, lambda line: self.front.say(f"{stage.name}: {line}")
        )
        self._note(stage, state="done", why="", exit_code=0, ended_at=time.time(), gpus=result.gpus)
        self._details(stage, result, decision)
        wrote = f", wrote {', '.join(each.path for each in result.wrote)}" if result.wrote else ""
        self.front.say(f"{stage.name}: done{wrote}")
        return result

    def _serve(self, stage: Stage) -> Result:
        """Start a server, unless one serves the same, and see it through until it is stopped."""
        job = self.graph.job(stage)
        assert job.serve is not None
        decision = decide_server(stage, job, self.shop, force=stage.name in self.forced)
        if decision.holds is not None:
            self.unchanged(stage, decision.holds, decision)
            return decision.holds
        stop_earlier(stage, self.shop, self.front.say, decision.why)
        run, result = self._start(stage, job, decision)
        self._live[stage.name] = run
        if self._presses:
            self._stop(run)
        write = self._lines.writer(stage.name)

        def say(line: str) -> None:
            self.front.say(f"{stage.name}: {line}")

        def ready(line: str) -> None:
            say(line)
            self._serving.add(stage.name)

        with saying_when_ready(job.serve, ready):
            result = serve_through(self.shop, stage, run, result, write, say)
        self._note(stage, state="done", why="it served until it was stopped", exit_code=0, ended_at=time.time())
        self._details(stage, result, decision)
        say("stopped serving")
        return result

    def unchanged(self, stage: Stage, result: Result, decision: Decision) -> None:
        """Its last result holds."""
        self._note(stage, state="unchanged", why=decision.why, run=result.run, exit_code=0, gpus=result.gpus)
        self._details(stage, result, decision)
        self.front.say(f"{stage.name}: unchanged: {decision.why}")

    def _begun(self, stage: Stage, decision: Decision) -> tuple[Run, Result] | None:
        """A run that an earlier command line left, if it is what would be started now; another one is stopped."""
        begun = self.shop.records.next(stage.name)
        if begun is None:
            return None
        run = left_over(self.shop, stage, begun)
        if (
            run is not None
            and difference(begun.fingerprint, decision.fingerprint) is None
            and stage.name not in self.forced
        ):
            return run, begun
        if run is not None and run_actions.is_live(run, self.shop.environ):
            self.front.say(f"{stage.name}: stopping {run.id}, which was begun before and is another one now")
            run_actions.stop(run, self.shop.environ)
        self.shop.records.drop(stage.name)
        return None

    def _start(self, stage: Stage, job: Job, decision: Decision) -> tuple[Run, Result]:
        """Raises SeatrialError, KeyboardInterrupt."""
        told = False
        while True:
            self._raise_if_stopped()
            self._freed.clear()
            with self._starting:
                try:
                    would_share(job, [run.id for run in self._live.values()], self.shop.environ)
                    return self._launch(stage, job, decision)
                except GpusHeldError as error:
                    words = error.message
            if stage.serve is None and self._stop_old_servers():
                continue
            if not told:
                self.front.say(f"{stage.name}: waits for a free GPU: {words}")
                told = True
            self._note(stage, state="waiting", why=f"for a free GPU: {words}")
            self._freed.wait(GPU_INTERVAL_S)

    def _stop_old_servers(self) -> bool:
        """Servers of an earlier command line never end by themselves: one may hold the GPU that its new model needs."""
        with self._starting:
            old = [
                stage
                for stage in self.graph.stages.values()
                if stage.serve is not None and stage.name not in self._live and self.shop.records.next(stage.name)
            ]
            for stage in old:
                stop_earlier(stage, self.shop, self.front.say, "its GPU is needed")
        return bool(old)

    def _launch(self, stage: Stage, job: Job, decision: Decision) -> tuple[Run, Result]:
        self._raise_if_stopped()
        own = job.notify != self.told
        told = job if own else job.without_notify
        prepared = launch.prepare(told, self.shop.environ, building=self._building, notifies=own)
        run = prepared.run
        result = Result(run.id, self.group.id, decision.fingerprint, decision.read, gpus=len(prepared.plan.gpus))
        self.shop.records.begin(stage.name, result)
        self._running(stage, run, decision, gpus=len(prepared.plan.gpus))
        self.front.say(f"{stage.name}: runs as {run.id}: {decision.why}")
        for warning in prepared.plan.warnings:
            self.front.say(f"{stage.name}: warning: {warning}")
        with self._building() as tell:
            launch.start(prepared, self.shop.environ, tell)
        return run, result

    @contextmanager
    def _building(self) -> Iterator[Callable[[str], None]]:
        """The front's, until this command line is stopped."""
        with self.front.building() as tell:

            def progress(line: str) -> None:
                self._raise_if_stopped()
                tell(line)

            try:
                yield progress
            except SeatrialError:
                self._raise_if_stopped()  # Ctrl-C reaches the engine's program that builds as well
                raise

    def _raise_if_stopped(self) -> None:
        if self._presses:
            raise KeyboardInterrupt

    def _running(self, stage: Stage, run: Run, decision: Decision, **more: Any) -> None:
        read = {"why": decision.why, "read": [each.as_dict() for each in decision.read]}
        now = time.time()
        self._note(stage, state="running", why=decision.why, run=run.id, started_at=now, details=read, **more)

    def _note(self, stage: Stage, **changes: Any) -> None:
        self.group = self.groups.change(self.group, stage.name, **changes)

    def _details(self, stage: Stage, result: Result, decision: Decision) -> None:
        seconds = result.seconds or 0.0
        told = {
            "fingerprint": digest_of(decision.fingerprint),
            "why": decision.why,
            "read": [each.as_dict() for each in decision.read],
            "wrote": [each.as_dict() for each in result.wrote or ()],
            "seconds": result.seconds,
            "gpu_seconds": seconds * result.gpus,
        }
        self._note(stage, details=told)

    # ------------------------------------------------------------------ Ctrl-C

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM once stops all runs cleanly, and twice kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        earlier = [signal.signal(number, self._on_interrupt) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, earlier, strict=True):
                signal.signal(number, handler)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        self._presses += 1
        self._cut_short = self._cut_short or self._tasks > 0
        live = list(self._live.values())
        if self._presses == 1 and live:
            self.front.say("Stopping: each stage got SIGTERM and has its grace period to save. Ctrl-C again kills.")
        for run in live if self._presses <= 2 else ():
            threading.Thread(target=self._stop, args=(run,), daemon=True).start()
        self._freed.set()

    def _stop(self, run: Run) -> None:
        with suppress(SeatrialError, OSError, AssertionError):
            run_actions.stop(run, self.shop.environ, kill=self._presses > 1)
