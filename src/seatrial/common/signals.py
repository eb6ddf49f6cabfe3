"""Step anatomy: the parts of an unmodified script's steps, as the hook measured them, read by every view.

The lines are the target's (seatrial.agent.hook): no type and no size of a value is taken for granted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Keys of a step event that make it a line of the hook's, and no number of the script's own.
LINE, FACTS, STOPPED, MEMORY = "anatomy", "training", "hook_stopped", "gpu_memory"
HOOK_KEYS = (LINE, FACTS, STOPPED, MEMORY, "tune", "tuned", "trial", "trial_failed")

#: Region → its meaning, in the order in which a step passes through them; ``other`` is the rest.
REGIONS: Mapping[str, str] = {
    "data": "waiting for data", "copy": "copies to the GPU", "other": "Python between", "forward": "forward pass",
    "backward": "backward pass", "optimizer": "optimizer", "sync": "waiting for GPU",
    "communication": "waiting for ranks", "evaluation": "evaluation", "checkpoint": "saving",
}  # fmt: skip

#: Regions that windows measure more finely than the whole run: copies and waits are taken out of the others there.
_REFINED = ("copy", "other", "forward", "backward", "optimizer", "sync", "communication")
#: The rest of a step whose forward pass was not separated: under torch.compile, and before the first window.
UNDIVIDED = "forward and Python"
#: Regions that hide the wait for other ranks, which the host does not see; first those that wait for the GPU.
_ENDLESS_S = 30 * 86400.0  # a pass of months is a sampler of "enough" samples, and no pass that anyone awaits
_HIDES_COMMUNICATION = ("sync", "backward", "copy", "optimizer", "forward", "other")
#: Fewer steps than this predict nothing. Our choice, as the first window opens after three.
FEWEST_STEPS = 10


@dataclass(frozen=True)
class Wait:
    """A line of the script that waits for the GPU: ``train.py:41 item``, how often and how long in each step."""

    site: str
    per_step: float
    seconds_per_step: float


@dataclass(frozen=True)
class Anatomy:
    """The steps of one rank, from the end of the first to the last.

    Attributes:
        regions: seconds by REGIONS; they add up to ``seconds``. stepped_s: of rates: what follows the last step is out.
        examples: trained on, 0 if unknown. median_step_s: of the lines that have it.
        gpu: phase of the step → share of the stream's time, in windows; {} without a GPU.
        caught_up: share of marks at which the GPU had done all that it was given: 1.0 is a GPU that waits for the host.
        copies_per_step, pageable, blocking: of copies to the GPU; the last two are shares, 0 to 1.
        copied_bytes_per_s: while such copies are made. calls_per_step: of the module called most often.
        lines: of the script between the steps, with their share of the time: ``train.py:41``; of Python 3.12 and later.
        facts: device, parameters, loader, precision …, as the script has them.
        over_time: (Unix time, region → seconds since the line before) of each line.
        recompile_s: the part of compile_s after the first step.
        starts_s: seconds in which loader workers started and ended in each pass.
        exposed_communication: share of the step that DDP's all-reduces take beyond what the backward pass hides.
    """

    rank: int
    steps: int
    seconds: float
    regions: Mapping[str, float]
    stepped_s: float = 0.0
    examples: int = 0
    median_step_s: float | None = None
    gpu: Mapping[str, float] = field(default_factory=dict)
    caught_up: float | None = None
    copies_per_step: float = 0.0
    pageable: float = 0.0
    blocking: float = 0.0
    copied_bytes_per_s: float | None = None
    calls_per_step: float = 0.0
    waits: tuple[Wait, ...] = ()
    lines: tuple[tuple[str, float], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    over_time: tuple[tuple[float, Mapping[str, float]], ...] = ()
    peak_bytes: int | None = None
    alloc_retries: int = 0
    compile_s: float = 0.0
    recompile_s: float = 0.0
    starts_s: float = 0.0
    exposed_communication: float | None = None

    def share(self, region: str) -> float:
        """Return the region's share of the time, 0 to 1."""
        return self.regions.get(region, 0.0) / self.seconds if self.seconds else 0.0

    def words(self, region: str) -> str:
        """Return the region's name."""
        return UNDIVIDED if region == "other" and "forward" not in self.regions else REGIONS[region]

    @property
    def steps_per_s(self) -> float | None:
        return (self.steps - 1) / self.stepped_s if self.stepped_s and self.steps > 1 else None

    @property
    def examples_per_s(self) -> float | None:
        return self.examples / self.stepped_s if self.stepped_s and self.examples else None

    @property
    def waits_per_step(self) -> float:
        return sum(wait.per_step for wait in self.waits)


def is_hooks(event: Mapping[str, Any]) -> bool:
    """Return whether a step event is a line of the hook's."""
    return any(isinstance(event[key], dict) for key in HOOK_KEYS if key in event)


def read_anatomy(events: Iterable[Mapping[str, Any]]) -> tuple[Anatomy, ...]:
    """Return the ranks' anatomies, by rank; of several processes of one rank, the one with the most steps."""
    lines: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    facts: dict[tuple[int, int], Mapping[str, Any]] = {}
    for event in events:
        for key, kept in ((LINE, lines), (FACTS, facts)):
            value = event.get(key)
            if isinstance(value, dict):
                process = (int(number(event.get("rank"))), int(number(value.get("pid"))))
                if kept is lines:
                    lines.setdefault(process, []).append({"t": event.get("t"), **value})
                else:
                    facts[process] = value
    best: dict[int, Anatomy] = {}
    for process, found in lines.items():
        made = _made(process[0], found, facts.get(process, {}))
        if made.rank not in best or made.steps > best[made.rank].steps:
            best[made.rank] = made
    return tuple(best[rank] for rank in sorted(best))


def last_facts(events: Iterable[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """Return the hook's last facts about a process of rank 0 that have this key; {} if none do."""
    found: Mapping[str, Any] = {}
    for event in events:
        facts = event.get(FACTS)
        if isinstance(facts, Mapping) and key in facts and not event.get("rank"):
            found = facts
    return found


def rates(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return rank 0's ``steps_per_s`` and ``examples_per_s`` between the first and last line; {} with fewer than two.

    Position and seconds left in a pass are ``pass_pct`` and ``pass_left_s``, except for endless loaders.
    """
    lines = [line for event in events if isinstance(line := event.get(LINE), Mapping) and not event.get("rank")]
    if not lines:
        return {}
    first, last = lines[0], lines[-1]
    seconds = number(last.get("seconds")) - number(first.get("seconds"))
    steps = number(last.get("steps")) - number(first.get("steps"))
    if seconds <= 0 or steps <= 0:
        return {}
    found = {"steps_per_s": steps / seconds}
    if (examples := number(last.get("examples")) - number(first.get("examples"))) > 0:
        found["examples_per_s"] = examples / seconds
    done, length = _pair(last.get("pass"))
    left_s = (length - done) * seconds / steps
    if length >= done > 0 and left_s < _ENDLESS_S:
        found["pass_pct"] = 100 * done / length
        found["pass_left_s"] = left_s
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def measured_window(ranks: Sequence[Anatomy]) -> tuple[float, float] | None:
    """Return begin and end of the first rank's steps, on the clock of its lines; None without time between them."""
    over_time = ranks[0].over_time
    if not over_time or not ranks[0].seconds:
        return None
    end_s = over_time[-1][0]
    return max(0.0, end_s - ranks[0].seconds), end_s


def why_stopped(events: Iterable[Mapping[str, Any]], *keys: str) -> str | None:
    """Return why the hook switched itself off, or the reason of the first line with one of ``keys``; None if none."""
    recorded = (event.get(key) for event in events for key in keys or (STOPPED,))
    return next((str(stopped.get("reason"))[:300] for stopped in recorded if isinstance(stopped, Mapping)), None)


def _made(rank: int, lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Anatomy:
    last = lines[-1]
    seconds = number(last.get("seconds"))
    window = last.get("window")
    window = window if isinstance(window, Mapping) else {}
    steps_seen, seen_s = max(1.0, number(window.get("steps"))), number(window.get("seconds"))
    copied = window.get("copied")
    copied = copied if isinstance(copied, Mapping) else {}
    copies = number(copied.get("count"))
    copied_s = numbers(window.get("regions")).get("copy", 0.0)
    gpu, ddp = numbers(window.get("gpu")), numbers(last.get("ddp"))
    stream_s, computed_s = sum(gpu.values()), ddp.get("backward_compute_s", 0.0)
    # Of a step of DDP's. Source: torch's DDP logger; overlap is communication during computing.
    exposed_s = max(0.0, ddp.get("backward_comm_s", 0.0) - ddp.get("backward_compute_comm_overlap_s", 0.0))
    # FSDP and collectives of the script wait on the stream.
    on_stream_s = gpu.get("communication", 0.0) / stream_s * seconds if stream_s else 0.0
    caught, marks = _pair(window.get("caught_up"))
    durations = [value for line in lines if (value := number(line.get("median_step_s")))]
    regions = refined(numbers(last.get("regions")), numbers(window.get("regions")))
    waits = _named(window.get("waits"), 3)
    return Anatomy(
        rank=rank,
        steps=int(number(last.get("steps"))),
        seconds=seconds,
        regions=_with_communication(regions, max(exposed_s * number(last.get("steps")), on_stream_s)),
        stepped_s=number(last.get("stepped_s")) or seconds,
        examples=int(number(last.get("examples"))),
        median_step_s=sorted(durations)[len(durations) // 2] if durations else None,
        gpu={phase: spent / stream_s for phase, spent in gpu.items()} if stream_s else {},
        caught_up=caught / marks if marks else None,
        copies_per_step=copies / steps_seen,
        pageable=number(copied.get("pageable")) / copies if copies else 0.0,
        blocking=number(copied.get("blocking")) / copies if copies else 0.0,
        copied_bytes_per_s=number(copied.get("bytes")) / copied_s if copied_s else None,
        calls_per_step=number(window.get("calls")) / steps_seen,
        waits=tuple(Wait(site, n / steps_seen, spent / steps_seen) for site, n, spent in waits),
        lines=tuple((site, min(1.0, spent / seen_s)) for site, spent in _named(window.get("lines"), 2) if seen_s),
        facts=facts,
        over_time=tuple(_over_time(lines)),
        peak_bytes=int(number(last.get("peak_bytes"))) or None,
        alloc_retries=int(number(last.get("alloc_retries"))),
        compile_s=number(last.get("compile_s")),
        recompile_s=number(last.get("compile_s")) - number(facts.get("first_compile_s", last.get("compile_s"))),
        starts_s=number(last.get("starts_s")),
        exposed_communication=exposed_s / computed_s if computed_s else None,
    )


def refined(whole: Mapping[str, float], window: Mapping[str, float]) -> dict[str, float]:
    """Return the whole run's regions, those that windows separate in the windows' proportions. The sum stays."""
    fine = {region: max(0.0, window.get(region, 0.0)) for region in _REFINED}
    coarse_s = sum(whole.get(region, 0.0) for region in _REFINED)
    if not sum(fine.values()):
        return {region: whole[region] for region in REGIONS if region in whole}
    scale = coarse_s / sum(fine.values())
    made = {region: fine[region] * scale if region in fine else whole.get(region, 0.0) for region in REGIONS}
    return {region: spent for region, spent in made.items() if spent > 0}


def _with_communication(regions: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Raise waiting for ranks to at least so many seconds, and lower what hid it. The sum stays."""
    made = dict(regions)
    missing = seconds - made.get("communication", 0.0)
    for region in _HIDES_COMMUNICATION:
        if taken := min(max(0.0, missing), made.get(region, 0.0)):
            made[region] -= taken
            made["communication"] = made.get("communication", 0.0) + taken
            missing -= taken
    return {region: made[region] for region in REGIONS if made.get(region, 0.0) > 0}


def _over_time(lines: Sequence[Mapping[str, Any]]) -> Iterable[tuple[float, dict[str, float]]]:
    before: Mapping[str, float] = {}
    for line in lines:
        now, window = numbers(line.get("regions")), line.get("window")
        since = {region: max(0.0, spent - before.get(region, 0.0)) for region, spent in now.items()}
        found = numbers(window.get("regions")) if isinstance(window, Mapping) else {}
        yield number(line.get("t")), refined(since, found)
        before = now


def _named(value: Any, length: int) -> list[list[Any]]:
    """Return the entries of so many values, the first of which is a name, cut to a line's length."""
    entries = value if isinstance(value, list) else []
    found = [each for each in entries if isinstance(each, list) and len(each) == length and isinstance(each[0], str)]
    return [[each[0][:120], *map(number, each[1:])] for each in found]


def _pair(value: Any) -> tuple[float, float]:
    return (number(value[0]), number(value[1])) if isinstance(value, list) and len(value) == 2 else (0.0, 0.0)


def numbers(value: Any) -> dict[str, float]:
    return {str(key): number(item) for key, item in value.items()} if isinstance(value, Mapping) else {}


def number(value: Any) -> float:
    """Return a finite number that is not negative; anything else is 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if math.isfinite(value) and 0 <= value < 1e15 else 0.0
