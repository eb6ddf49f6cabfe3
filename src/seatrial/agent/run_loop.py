"""Watch the target while it runs: one loop over its output, signals, ended children and the clock."""

import os
import selectors
import signal
import time
from contextlib import suppress
from typing import Dict, List, Optional, Set

from seatrial.agent import gpu_check, isolation, journal, output, saved_files, target, tune
from seatrial.agent.gpu_check import FrameworkCheck
from seatrial.agent.journal import Journal, Redactor, print_to_stderr
from seatrial.agent.observer import Observer
from seatrial.agent.output import Activity, TargetReports
from seatrial.agent.plan import agent_exit_code, events_file
from seatrial.agent.target import become_subreaper
from seatrial.agent.terminal import Input, Standard, open_streams
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import AgentFinished, ModelsSaved, Signal, TargetExited, TargetStarted, never_started
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.probe import container, processes
from seatrial.probe.container import Cgroup
from seatrial.probe.sampler import Sampler

#: A failed write fills the disk first, to the page; other failures leave more space than this.
_FULL = 0.95

EXIT_GPU_CONTRACT = 3
EXIT_TIMEOUT = 124  # as timeout(1) has it
EXIT_CANNOT_RUN = 126  # as shells have it
EXIT_NOT_FOUND = 127
#: Time between SIGTERM and SIGKILL for processes that the target leaves behind; the grace period if that is shorter.
LEFTOVER_GRACE_S = 5.0
#: Time for leftovers to end by themselves: helpers such as Python's multiprocessing.resource_tracker end when they see
#: that the target has gone, and were not left running.
LEFTOVER_NOTICE_S = 0.5
#: The third request to stop cuts the grace period short. The second may be an engine repeating itself, or Ctrl-C
#: pressed again while a checkpoint is being written.
STOPS_UNTIL_KILL = 3
#: A target can send its own PID 1 a thousand a second; evidence of that is bought with the host's disk.
_MOST_RECORDED_SIGNALS = 200
#: Seconds for copying the files that the target left in /tmp; fewer for a stopped run (job.plan.AGENT_GRACE_S).
_COPY_S, _COPY_WHEN_STOPPED_S = 60.0, 5.0
#: Interval between looks at leftovers, and at a reader that is behind.
_TICK_S = 0.05


def exhausted() -> Optional[Finding]:
    """Return the finding if /dev/shm is full now, else None. Call before the target's remains are cleaned up."""
    memory = container.read()
    if memory is None or memory.used_bytes < _FULL * memory.total_bytes:
        return None
    used = "/dev/shm had %d of %d bytes in use when the target ended" % (memory.used_bytes, memory.total_bytes)
    return by_id("shared-memory-too-small").finding([used])


class TargetRun:
    """Starts the target, and is done when the target and all it left behind are gone.

    ``secrets``: byte strings to cut out of its output. ``trial``: of its framework, alongside the target, or None.
    """

    def __init__(
        self,
        plan: AgentPlan,
        env: Dict[str, str],
        journal: Journal,
        secrets: List[bytes],
        trial: Optional[FrameworkCheck],
    ) -> None:
        self._plan, self._env, self._journal = plan, env, journal
        self._secrets, self._trial = secrets, trial
        self._cgroup = Cgroup()
        self._activity = Activity()
        self._reports = TargetReports(events_file(plan), journal, self._activity)
        self._streams: List[output.Stream] = []
        self._input: Optional[Input] = None
        self._selector = selectors.PollSelector()  # epoll refuses regular files
        self._guard: Optional[int] = None
        self._stops = self._signals = 0
        self._notified: Set[int] = set()
        self._timed_out = self._contract_broken = self._interrupted = False
        self._terminate_at_s: Optional[float] = None
        self._kill_at_s: Optional[float] = None
        self._status: Optional[int] = None
        self._max_rss_bytes: Optional[int] = None
        self._exhausted: Optional[Finding] = None

    @property
    def not_again(self) -> bool:
        """Return True if a signal, the time limit or the GPU contract ended the target."""
        return self._stops > 0 or self._timed_out or self._contract_broken

    def run(self) -> int:
        """Run the target from start to end and return the agent's exit code."""
        become_subreaper()
        sampler = Sampler([gpu.uuid for gpu in self._plan.gpus])
        energy_before_j = sampler.energy_j()
        oom_kills_before = self._cgroup.oom_kills()
        if os.getpid() != 1:
            self._guard = isolation.start(self._plan.run_id)
        wakeup = target.collect_signals()
        self._selector.register(wakeup, selectors.EVENT_READ)
        started_s = time.monotonic()
        argv = target.command(self._plan)
        argv = argv if self._plan.tune is None else tune.command(tune.of(self._plan, argv))
        if self._trial is not None:
            self._trial.start()
        standard = open_streams(self._plan, self._journal.note)
        try:
            self._target = target.start(argv, self._env, self._plan.workdir, standard, self._plan.interactive)
        except OSError as error:
            if self._trial is not None:
                self._trial.give_up()
            return self._cannot_run(argv[0], error)
        self._write_started(argv)
        standard.close_theirs()
        self._open_streams(standard)
        observer = Observer(self._plan, sampler, self._target.pid, self._journal, self._reports, self._activity)
        observer.start()
        self._watch(wakeup, started_s)
        ended_s = time.monotonic()
        if self._input is not None:
            self._input.close()
        self._end_trial(wakeup)
        self._end_leftovers(wakeup)
        stopped = observer.stop()
        energy_after_j = sampler.energy_j() if stopped else {}
        self._reports.finish()
        self._journal.report_refusals()
        journal.redact_in_place(events_file(self._plan), self._secrets)
        code = self._write_exited(ended_s - started_s, oom_kills_before)
        energy_j = _difference(energy_before_j, energy_after_j)
        contexts = list(observer.contexts) if stopped else None  # one that hangs in NVML may have missed some
        began = time.time() - (time.monotonic() - started_s)
        if self._plan.unkept:
            limit_s = _COPY_WHEN_STOPPED_S if self._stops else _COPY_S
            outside = saved_files.keep(self._plan.unkept, self._plan.run_dir, began - saved_files.SLACK_S, limit_s)
            if outside is not None:
                self._journal.write(outside)
        folder = self._env.get("SEATRIAL_MODELS_DIR")
        if self._plan.evidence_dir is None and folder is not None:  # the host cannot see the volumes of a pod
            self._journal.write(ModelsSaved(files=saved_files.models(folder, began)))
        self._journal.summary([stream.lines for stream in self._streams])
        self._journal.write(AgentFinished(exit_code=code, energy_j=energy_j, contexts=contexts))
        return code

    def _cannot_run(self, program: str, error: OSError) -> int:
        code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_RUN
        message = "%s cannot be run: %s" % (error.filename or program, error.strerror)
        print_to_stderr(message)
        self._journal.note(message)
        self._journal.write(never_started("exited", code))
        self._journal.write(AgentFinished(exit_code=code, energy_j={}))
        return code

    def _write_started(self, argv: List[str]) -> None:
        redactor = Redactor(self._secrets)
        argv = [redactor.text(word) for word in argv]
        # The kernel's event has its framework.
        started = TargetStarted(pid=self._target.pid, argv=argv, launcher=self._plan.launcher, framework=None)
        self._journal.write(started)

    def _open_streams(self, standard: Standard) -> None:
        folder = self._plan.evidence_dir
        for number, source in ((1, standard.stdout), (2, standard.stderr)):
            if source is None:
                continue
            stream = output.Stream(number, source, folder, Redactor(self._secrets), self._journal, self._activity)
            stream.engine.shows_prompts = source in standard.terminals
            self._streams.append(stream)
            self._selector.register(source, selectors.EVENT_READ, stream)
        if self._plan.input is not None and not self._plan.interactive:
            try:
                self._input = Input(self._plan.input, standard, self._selector, self._journal.note)
            except OSError as error:
                self._journal.note("standard input cannot be passed on: %s" % error)
                if standard.stdin is not None:  # the target reads that there is none
                    os.close(standard.stdin)
                    standard.stdin = None

    def _watch(self, wakeup: int, started_s: float) -> None:
        """Serve streams, signals and time limits until the target itself has ended."""
        timeout_at_s = None if self._plan.timeout_s is None else started_s + self._plan.timeout_s
        while self._status is None:
            self._look_at_trial()
            trial_due_s = self._trial.due_s if self._trial else None
            self._turn(wakeup, _pause_s(timeout_at_s, self._terminate_at_s, self._kill_at_s, trial_due_s))
            if timeout_at_s is not None and time.monotonic() >= timeout_at_s:
                timeout_at_s, self._timed_out = None, True
                self._stop(signal.SIGTERM, "timeout")
            if self._terminate_at_s is not None and time.monotonic() >= self._terminate_at_s:
                self._terminate_at_s = None
                self._forward(signal.SIGTERM, "agent")
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._kill_at_s = None
                self._kill()

    def _look_at_trial(self) -> None:
        """Judge the framework's trial once it has ended. Failed: the target is stopped, however far it is."""
        if (trial := self._trial) is None:
            return
        if trial.due_s is not None and time.monotonic() >= trial.due_s:
            trial.give_up()
        if trial.running:
            return
        self._trial = None
        self._contract_broken = not gpu_check.passed(trial, self._journal)
        if self._contract_broken and self._status is None:
            self._forward(signal.SIGTERM, "agent")
            grace_end_s = time.monotonic() + min(LEFTOVER_GRACE_S, self._plan.grace_s)
            self._kill_at_s = min(self._kill_at_s or grace_end_s, grace_end_s)

    def _end_trial(self, wakeup: int) -> None:
        """Wait for the framework's check, as a target that ended early counts only then; not in a stopped run."""
        self._look_at_trial()
        while self._trial is not None:
            if self._stops or self._timed_out:
                self._journal.note("the run was stopped before its %s was tested" % self._trial.framework)
                self._trial.give_up()
                self._trial = None
                return
            self._turn(wakeup, _pause_s(self._trial.due_s))
            self._look_at_trial()

    def _turn(self, wakeup: int, pause_s: Optional[float]) -> None:
        """Wait for one round of events, at most ``pause_s``, and serve them all."""
        if any(stream.engine.waiting for stream in self._streams):
            pause_s = _TICK_S if pause_s is None else min(pause_s, _TICK_S)
        ready = self._selector.select(pause_s)
        # If both streams are ready, a progress bar ends its line before the other stream begins one.
        for key, _ in sorted(ready, key=lambda each: not getattr(each[0].data, "within_line", False)):
            if key.fd == wakeup:
                self._serve_signals(os.read(wakeup, 4096))
            elif isinstance(key.data, Input):
                key.data.serve(key.fd)
            else:
                key.data.pump()
                if not key.data.open:
                    self._selector.unregister(key.data.source)
        for stream in self._streams:
            if stream.open:
                stream.engine.flush(0)

    def _serve_signals(self, numbers: bytes) -> None:
        """Handle the signals since the last look, each kind once: the kernel merges signals that pile up, too."""
        self._reap()  # a target that has ended by itself meanwhile was not interrupted
        for number in dict.fromkeys(numbers):
            if number in target.STOPPING:
                self._interrupted |= self._status is None and not target.ignores_signal(self._target.pid, number)
                self._stop(number, "engine")
            elif number != signal.SIGCHLD and not self._plan.interactive:
                self._forward(number, "engine")
        self._reap()  # a storm of signals fills the pipe, and the one for the target's end is not in it

    def _reap(self) -> None:
        """Reap every child that has ended: the target, and orphans that fell to us."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._trial is not None and pid == self._trial.pid:
                self._trial.ended(os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status))
            if pid == self._target.pid:
                self._status = status
                self._max_rss_bytes = usage.ru_maxrss * 1024  # Linux counts KiB
                self._exhausted = exhausted() if status else None
                self._target.returncode = status  # Popen never waits for a PID that others may have by now

    def _stop(self, number: int, origin: str) -> None:
        """Pass it on and let the grace period begin; the third time, kill.

        SIGTERM follows on a SIGINT that has done nothing, with a grace period of its own where the user sends it.
        """
        if self._plan.interactive and number in (signal.SIGINT, signal.SIGQUIT):
            return  # the terminal has sent it to the target as well
        self._forward(number, origin)
        grace_end_s = time.monotonic() + self._plan.grace_s
        if number == signal.SIGINT and self._kill_at_s is None:
            self._terminate_at_s = grace_end_s
            self._kill_at_s = grace_end_s + min(LEFTOVER_GRACE_S, self._plan.grace_s)
        elif self._kill_at_s is None or self._terminate_at_s is not None:
            self._terminate_at_s, self._kill_at_s = None, grace_end_s
        self._stops += origin == "engine"
        if self._stops >= STOPS_UNTIL_KILL:
            self._kill_at_s = time.monotonic()

    def _forward(self, number: int, origin: str) -> None:
        pids = target.signal_recipients(number, self._target.pid, self._plan.launcher)
        reached = target.send_signal(pids, number)
        if number in target.STOPPING:
            self._notified.update(reached)
        self._write_signal(number, origin, reached)

    def _kill(self) -> None:
        pids = [self._target.pid] + [pid for pid in self._leftovers() if pid != self._target.pid]
        origin = "timeout" if self._timed_out else "agent"
        self._interrupted |= self._stops > 0 and self._status is None
        self._write_signal(signal.SIGKILL, origin, target.send_signal(pids, signal.SIGKILL))

    def _write_signal(self, number: int, origin: str, pids: List[int]) -> None:
        self._signals += 1
        if self._signals <= _MOST_RECORDED_SIGNALS:
            name = target.signal_name(number)
            self._journal.write(Signal(signal=int(number), name=name, origin=origin, forwarded_to=pids))
        elif self._signals == _MOST_RECORDED_SIGNALS + 1:
            self._journal.note("signals beyond the first %d are forwarded but not recorded" % _MOST_RECORDED_SIGNALS)

    def _leftovers(self) -> List[int]:
        """Return the PIDs below us but for the guard and the trial: as subreaper we inherit what loses its parent."""
        ours = (self._guard, self._trial.pid if self._trial else None)
        return [process.pid for process in processes.descendants(os.getpid()) if process.pid not in ours]

    def _end_leftovers(self, wakeup: int) -> None:
        """End the processes that the target left: request it, then kill them; their last output is kept."""
        left = self._leftovers()
        notice_until_s = time.monotonic() + LEFTOVER_NOTICE_S
        while left and self._kill_at_s is None and time.monotonic() < notice_until_s:
            self._turn(wakeup, _TICK_S)
            left = self._leftovers()
        if unnotified := [pid for pid in left if pid not in self._notified]:
            self._write_signal(signal.SIGTERM, "end", target.send_signal(unnotified, signal.SIGTERM))
        # A shell that ends at once must not cost the script under it the grace period that is running.
        kill_at_s = self._kill_at_s or time.monotonic() + min(LEFTOVER_GRACE_S, self._plan.grace_s)
        while left and time.monotonic() < kill_at_s:
            self._turn(wakeup, _TICK_S)
            left = self._leftovers()
        while left:
            self._kill_leftovers(left)
            self._turn(wakeup, _TICK_S)
            left = self._leftovers()
        self._kill_leftovers([])  # one that forks faster than /proc is read was not seen
        for stream in sorted(self._streams, key=lambda each: not each.within_line):
            while stream.open and stream.pump():
                pass
            stream.close()

    def _kill_leftovers(self, pids: List[int]) -> None:
        """Kill these; in a container all but ourselves at once: no process forks fast enough to escape (kill(2))."""
        if os.getpid() != 1:
            target.send_signal(pids, signal.SIGKILL)
            return
        with suppress(ProcessLookupError):  # nothing is left
            os.kill(-1, signal.SIGKILL)

    def _write_exited(self, seconds: float, oom_kills_before: Optional[int]) -> int:
        status = self._status or 0
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_code = None if killed_by else os.WEXITSTATUS(status)
        cause = "timeout" if self._timed_out else "signal" if killed_by else "exited"
        if self._contract_broken:  # how it ended is of no account, nor is it a failure of its own
            cause, exit_code, killed_by = "gpu-contract", None, None
        if self._exhausted is not None:
            self._journal.write(self._exhausted.event())
        counted = self._cgroup.oom_kills()
        oom_kills = None if counted is None or oom_kills_before is None else counted - oom_kills_before
        used = {"max_rss_bytes": self._max_rss_bytes, "oom_kills": oom_kills}
        ended = TargetExited(exit_code=exit_code, signal=killed_by, cause=cause, seconds=round(seconds, 3), **used)
        self._journal.write(ended)
        if self._contract_broken:
            return EXIT_GPU_CONTRACT
        if self._timed_out:
            return EXIT_TIMEOUT
        code = 128 + killed_by if killed_by else os.WEXITSTATUS(status)
        return agent_exit_code(self._plan, code, self._interrupted)


def _pause_s(*moments_s: Optional[float]) -> Optional[float]:
    """Return the seconds to the next of these moments, or None if there is none to wait for."""
    known = [moment_s for moment_s in moments_s if moment_s is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None


def _difference(before: Dict[str, Optional[float]], after: Dict[str, Optional[float]]) -> Dict[str, Optional[float]]:
    """Return UUID → joules used in between; None without a counter."""
    both = ((uuid, before.get(uuid), end_j) for uuid, end_j in after.items())
    return {uuid: None if start is None or end is None else round(end - start, 3) for uuid, start, end in both}
