"""Run one trial of `seatrial tune`: measure the script for some steps, report them, and end its process.

It ends by ``os._exit`` right behind an optimizer's step, so that no loop and no ``except`` of the script's goes on.
"""

import atexit
import json
import multiprocessing
import os
import sys
from collections import deque
from time import perf_counter
from typing import Any, Deque, Dict, List, Optional

from . import changes, report, undo_journal
from .observe import wrap
from .steps import Recorder

#: Steps whose losses are kept, from the first one on.
_MOST_STEPS = 400

#: Attribute of a scaled tensor that holds its value before scaling.
_UNSCALED = "_seatrial_unscaled"


class Losses:
    """Keep each step's mean over its backward passes; GradScaler's as they were before scaling."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._of_step: List[Any] = []
        self._steps: List[Any] = []
        self._depth = 0

    def place(self) -> None:
        wrap(self._torch.autograd, "backward", self._backward)
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = getattr(sys.modules.get(module), "GradScaler", None)
            if scaler is not None and "scale" in vars(scaler):
                wrap(scaler, "scale", self._scale)

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and len(self._steps) < _MOST_STEPS:
                self._take(tensors if tensors is not None else kwargs.get("tensors"))
            self._depth += 1
            try:
                return original(*([tensors] if tensors is not None else []), *args, **kwargs)
            finally:
                self._depth -= 1

        return backward

    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            try:
                setattr(scaled, _UNSCALED, outputs.detach())
            except Exception:  # noqa: BLE001  several outputs, or no tensor
                pass
            return scaled

        return scale

    def _take(self, tensors: Any) -> None:
        """Keep a clone of the loss, as the script may change it in place; wait for no GPU."""
        try:
            torch = self._torch
            loss = tensors if torch.is_tensor(tensors) else tensors[0]
            loss = getattr(loss, _UNSCALED, loss)
            if loss.numel() != 1 or (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
                return
            self._of_step.append(loss.detach().reshape(()).clone())
        except Exception:  # noqa: BLE001  a step without its loss
            pass

    def step_ended(self) -> None:
        self._steps.append(self._of_step)
        self._of_step = []

    def values(self) -> List[Any]:
        """Return the loss of each step from the first; None for a step without one. Waits for the GPU."""
        flat = [loss for losses in self._steps for loss in losses]
        read = self._read(flat)
        found: List[Any] = []
        at = 0
        for losses in self._steps[:_MOST_STEPS]:
            values = read[at : at + len(losses)]
            at += len(losses)
            found.append(float("%.7g" % (sum(values) / len(values))) if values else None)
        while found and found[-1] is None:
            found.pop()
        return found

    def _read(self, tensors: List[Any]) -> List[float]:
        """Return the tensors' values with one copy from each device."""
        values: Dict[int, float] = {}
        by_device: Dict[Any, List[int]] = {}
        for number, tensor in enumerate(tensors):
            by_device.setdefault(tensor.device, []).append(number)
        for numbers in by_device.values():
            stacked = self._torch.stack([tensors[number].double() for number in numbers]).tolist()
            values.update(zip(numbers, stacked))
        return [values[number] for number in range(len(tensors))]


#: Steps before the measured ones, at most, while their time is not steady yet or loaders' queues are full.
_MOST_WARMUP_STEPS = 60

#: The measurement begins when, of this many steps, none took this many times the median and this many seconds, as
#: compiling does. A loader with four workers may give three batches at once and one later.
_ALIKE_STEPS, _ALIKE, _ALIKE_S = 5, 3.0, 0.3

#: Shortest measurement: sixty steps of a small network take a tenth of a second, and show little.
_LEAST_S = 1.5

#: Steps after which a change that could not be made is known to be refused: compiling begins after the third.
_REFUSED_BY = 5

#: Parts that the measured time is also reported in, for its spread.
_PARTS = 6

#: Regions whose time belongs to no step: a trial runs through them by chance.
_BETWEEN_STEPS = ("evaluation", "checkpoint")


def begin(torch: Any, recorder: Recorder, loader_of: Any, text: str) -> None:
    """Make a trial of this process from ``text``, $SEATRIAL_TRIAL. ``loader_of``: returns the loader's settings."""
    TrialClock(torch, recorder, loader_of, json.loads(text)).place()


class TrialClock:
    """Decides when the measured part begins and ends.

    Ranks end behind the same step: rank 0 names it in a file next to the reports, before it goes on to that step,
    and no rank can be further where they train together.
    """

    def __init__(self, torch: Any, recorder: Recorder, loader_of: Any, options: Dict[str, Any]) -> None:
        self.torch, self.recorder, self.loader_of = torch, recorder, loader_of
        self.warmup_steps = int(options.get("warmup_steps", 10))
        self.steps, self.seconds = int(options.get("steps", 60)), float(options.get("seconds", 20.0))
        self.seed_offset = int(options.get("seed_offset", 0))
        self.tried = [str(key) for key in options.get("tried", ())]
        self.losses = Losses(torch)
        self._synchronize = torch.cuda.synchronize  # windows, which note who waits, wrap it later
        self.pid = os.getpid()
        self.last_s = self.first_s = self.began_s = self.warm_s = 0.0
        self.began_step, self.began_examples = 0, 0.0
        self.began_regions: Dict[str, float] = {}
        self.recent: Deque[float] = deque(maxlen=_ALIKE_STEPS)
        self.durations: List[float] = []
        self.end_after: Optional[int] = None
        self.reported = False

    def place(self) -> None:
        seed(self.torch, self.seed_offset)
        self.losses.place()
        undo_journal.begin(self.torch)
        self.recorder.at_step = self.at_step
        atexit.register(self.script_ended)

    def at_step(self, step: int) -> None:
        """Look at the trial as step number ``step`` of the optimizer has ended; end the process if that fails."""
        if os.getpid() != self.pid:
            return
        try:
            self._look(step)
        except Exception as error:  # noqa: BLE001  any error: a trial that goes on would be a whole training
            report.failure("trial_failed", error)
            os._exit(0)

    def _look(self, step: int) -> None:
        self.losses.step_ended()
        now_s = perf_counter()
        if self._ends_here(step):
            self._leave("steps")
        if self.tried and _REFUSED_BY <= step <= _MOST_WARMUP_STEPS and self._all_refused():
            self._leave("refused")
        if not self.first_s:
            self.first_s = now_s
        elif not self.began_s:
            self.recent.append(now_s - self.last_s)
            if self._is_warm(step):
                now_s = self._begin(step)
        else:
            self.durations.append(now_s - self.last_s)
            if self._is_over(step, now_s):
                self._leave("steps" if len(self.durations) >= self.steps else "seconds")
        self.last_s = now_s

    def _is_warm(self, step: int) -> bool:
        slowest_s, median_s = max(self.recent), sorted(self.recent)[len(self.recent) // 2]
        steady = slowest_s <= _ALIKE_S or slowest_s <= _ALIKE * median_s
        if self.recent[-1] <= max(_ALIKE_S, _ALIKE * median_s):  # what compiles takes as long as it takes
            self.warm_s += self.recent[-1]
        in_flight = 0
        settings = self.loader_of() or {}
        if settings.get("workers"):
            in_flight = int(settings["workers"]) * int(settings.get("prefetch_factor") or 2)
        least = min(max(self.warmup_steps, in_flight + 2), _MOST_WARMUP_STEPS)
        if self.warm_s > 0.4 * self.seconds or step >= 2 * _MOST_WARMUP_STEPS:
            return True
        return step >= least and steady

    def _all_refused(self) -> bool:
        """Return whether none of the changes that this trial is about could be made: there is nothing to measure."""
        return ranks(self.torch)[1] == 1 and all(changes.refused(key) for key in self.tried)

    def _begin(self, step: int) -> float:
        self._wait_for_gpu()
        self.began_step, self.began_examples = step, self.recorder.examples
        self.began_regions = self.recorder.timeline.totals()
        self.began_s = perf_counter()
        return self.began_s

    def _is_over(self, step: int, now_s: float) -> bool:
        """Return whether this rank ends here. A GPU's steps count by the host's time and are awaited."""
        rank, world = ranks(self.torch)
        if world > 1 and rank:
            return False
        if self.end_after is not None:
            return step >= self.end_after
        measured_s = now_s - self.began_s
        enough = len(self.durations) >= self.steps and measured_s >= min(_LEAST_S, self.seconds)
        enough = enough and not self._amid_a_pass()
        if not enough and self.warm_s + measured_s < self.seconds:
            return False
        if world > 1:
            self.end_after = step + 1
            with open(_end_file() + ".aside", "w", encoding="utf-8") as file:
                file.write(str(self.end_after))
            os.replace(_end_file() + ".aside", _end_file())
            return False
        return True

    def _amid_a_pass(self) -> bool:
        """Return True while a few steps of a short pass remain: workers start for each, and whole passes cost alike."""
        steps, in_pass = len(self.durations), self._steps_in_pass()
        return bool(in_pass and steps % in_pass and in_pass - steps % in_pass <= max(self.steps, steps // 2))

    def _steps_in_pass(self) -> int:
        return int((self.loader_of() or {}).get("length") or 0)

    def _ends_here(self, step: int) -> bool:
        """Return True if rank 0 named this step as the last; this rank may still be warming up by its own clock."""
        rank, world = ranks(self.torch)
        return world > 1 and rank > 0 and step >= (_read_end() or sys.maxsize)

    def _wait_for_gpu(self) -> None:
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            self._synchronize()

    def _leave(self, ended: str) -> None:
        try:
            self._wait_for_gpu()
            self.report_trial(ended)
            self.recorder.report_line()
        except Exception as error:  # noqa: BLE001
            report.failure("trial_failed", error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001
                pass
        for child in multiprocessing.active_children():  # loaders' workers notice a parent's death after seconds only
            child.kill()
        os._exit(0)

    def script_ended(self) -> None:
        """Report what was measured, as the script ends before the trial does."""
        if os.getpid() == self.pid and self.recorder.on:
            try:
                self.report_trial("script")
            except Exception as error:  # noqa: BLE001
                report.failure("trial_failed", error)

    def report_trial(self, ended: str) -> None:
        """Write the trial's report, once."""
        if self.reported:
            return
        self.reported = True
        rank, world = ranks(self.torch)
        line: Dict[str, Any] = {"pid": self.pid, "rank": rank, "world": world, "ended": ended}
        line.update(all_steps=self.recorder.steps, seed_offset=self.seed_offset, **self._measured())
        line["losses"] = self.losses.values()
        line["kept_files"] = undo_journal.counts()
        cuda = self.torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            line.update(peak_bytes=cuda.max_memory_allocated(), reserved_bytes=cuda.max_memory_reserved())
        report.write("trial", line)

    def _measured(self) -> Dict[str, Any]:
        now_s = perf_counter()
        steps = len(self.durations)
        if not self.began_s or not steps:
            return {"steps": 0}
        totals = self.recorder.timeline.totals()
        regions = {name: spent - self.began_regions.get(name, 0.0) for name, spent in totals.items()}
        seconds = max(1e-9, now_s - self.began_s - sum(regions.get(name, 0.0) for name in _BETWEEN_STEPS))
        examples = self.recorder.examples - self.began_examples
        in_pass = self._steps_in_pass()
        each = max(1, steps // _PARTS)
        if in_pass and steps >= 3 * in_pass:
            each = max(1, each // in_pass) * in_pass
        parts = [self.durations[at : at + each] for at in range(0, each * (steps // each), each)]
        return {
            "steps": steps,
            "warmup_steps": self.began_step,
            "seconds": round(seconds, 6),
            "steps_per_s": round(steps / seconds, 4),
            "median_step_s": round(sorted(self.durations)[steps // 2], 7),
            "parts_s": [round(sum(part) / len(part), 7) for part in parts],
            "examples_per_s": round(examples / seconds, 3) if examples > 0 else None,
            "regions": {name: round(spent, 6) for name, spent in regions.items() if spent > 0},
        }


def seed(torch: Any, offset: int) -> None:
    """Begin where a script that never seeds has a seed all the same, so that trials compare; and with an offset,
    have what the script seeds itself differ, too."""
    python, numpy = sys.modules.get("random"), getattr(sys.modules.get("numpy"), "random", None)
    for owner, name in ((torch, "manual_seed"), (torch.random, "manual_seed"), (python, "seed"), (numpy, "seed")):
        original = getattr(owner, name, None)
        if original is not None:
            original(_FIRST_SEED + offset)
            if offset:
                wrap(owner, name, lambda seeder: _offset(seeder, offset))


def _offset(original: Any, offset: int) -> Any:
    def seeded(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (_other(args[0], offset), *args[1:])
        kwargs = {name: _other(value, offset) if name in ("seed", "a") else value for name, value in kwargs.items()}
        return original(*args, **kwargs)

    return seeded


def _other(seed: Any, offset: int) -> Any:
    return (seed + offset) % 2**32 if isinstance(seed, int) and not isinstance(seed, bool) else seed


#: Any number; the same in every trial.
_FIRST_SEED = 20_261


def ranks(torch: Any) -> Any:
    """Return (this process's rank, the number of ranks)."""
    try:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
    except Exception:  # noqa: BLE001
        pass
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def _end_file() -> str:
    return os.environ.get("SEATRIAL_EVENTS", "") + ".end"


def _read_end() -> Optional[int]:
    try:
        with open(_end_file(), encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
