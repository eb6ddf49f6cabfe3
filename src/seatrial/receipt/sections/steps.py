"""Steps: what bounded the run and what would help, and the parts of each rank's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from seatrial.common.signals import REGIONS, Anatomy, last_facts
from seatrial.events import GpuKernel, Sample, Step
from seatrial.findings.finding import FIX
from seatrial.job.units import format_bytes
from seatrial.receipt.section import STEPS_PLOT, Block, Plot, Record, Row, Rows, Section, Share, Shares
from seatrial.receipt.values import count, figure, number, percent

if TYPE_CHECKING:
    from seatrial.diagnosis import Diagnosis
    from seatrial.diagnosis.happened import EndFacts
    from seatrial.receipt.evidence import RunEvidence
    from seatrial.receipt.model import Receipt

#: Ranks whose steps a receipt has.
MOST_RANKS = 8
#: Colours of parts in look.css; later parts begin again.
_COLOURS = 10
#: Characters of a bar in text.
_BAR = 24
#: Facts in their order; others are in receipt.json.
_FACTS = ("device", "parallel", "world", "optimizer", "parameters", "parameter_dtype", "autocast", "cuda_graph",
          "loader")  # fmt: skip
#: Fields of a StepAnatomy that are the Anatomy's.
_AS_MEASURED = (
    "rank", "steps", "seconds", "steps_per_s", "examples_per_s", "median_step_s", "peak_bytes", "alloc_retries",
)  # fmt: skip
#: Settings of a loader whose names alone are unclear.
_LOADER = {"length": "batches a pass", "batch_size": "batch size"}
#: Exit causes of a run that has not failed.
_CUT = frozenset({"pruned", "stopped", "timeout"})
_NOT_FAILED = frozenset({"finished", "running", "gpu-not-used"}) | _CUT

_COARSE = "Copies to the GPU and waits for it are separate in a few steps only: here they are part of the others."


class AdviceRecord(Record):
    """A change that would help, and its expected gain."""

    change: str
    gain: str


class DiagnosisRecord(Record):
    """The bound of the run; see diagnosis/__init__.py. ``words`` is the cause and its meaning."""

    cause: str
    words: str
    tags: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    advice: tuple[AdviceRecord, ...] = ()
    mfu: float | None = None
    runner_up: str = ""


class StepPart(Record):
    """One part of a step: an ID of common.signals.REGIONS, its name, and its time. ``share``: 0 to 1."""

    id: str
    words: str
    seconds_per_step: float
    share: float


class StepAnatomy(Record):
    """The steps of one rank, as the hook measured them in an unmodified script; the target's own word.

    Attributes:
        seconds: from the end of the first step to the last, pauses between them included.
        parts: they add up to it. waits: lines of the script that wait for the GPU.
        facts: about the training, in words: device, parameters, precision, loader.
    """

    rank: int = 0
    steps: int
    seconds: float
    steps_per_s: float | None = None
    examples_per_s: float | None = None
    median_step_s: float | None = None
    parts: tuple[StepPart, ...] = ()
    waits: tuple[str, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
    peak_bytes: int | None = None
    alloc_retries: int = 0
    compile_s: float | None = None


class Bound(Section):
    title = "Diagnosis"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        found = _diagnosis(run)
        return {"diagnosis": found and DiagnosisRecord.model_validate(found, from_attributes=True)}

    def blocks(self, receipt: Receipt) -> list[Block]:
        diagnosis = receipt.diagnosis
        if diagnosis is None:
            return []
        rows = [Row("bound by", diagnosis.words + (f" ({', '.join(diagnosis.tags)})" if diagnosis.tags else ""))]
        rows += [Row("seen", line) for line in diagnosis.evidence]
        rows += [Row("or", diagnosis.runner_up)] if diagnosis.runner_up else []
        if diagnosis.mfu is not None:
            rows.append(Row("MFU", f"{percent(100 * diagnosis.mfu)} of the GPUs' peak in bf16"))
        rows += [Row(FIX, f"{advice.change} ({advice.gain})") for advice in diagnosis.advice]
        return [Rows(rows)]


class Steps(Section):
    title = "Steps"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        return {"anatomy": tuple(_record(rank) for rank in run.evidence.anatomy[:MOST_RANKS] if rank.steps > 1)}

    def blocks(self, receipt: Receipt) -> list[Block]:
        """Return the first rank's steps, and the rates and the largest parts of the others."""
        if not receipt.anatomy:
            return []
        first, *others = receipt.anatomy
        rows = [Row("steps", _rates(first))]
        for part in first.parts:
            bar = "█" * round(_BAR * part.share)
            amount = f"{percent(100 * part.share):>5}  {_seconds(part.seconds_per_step)} a step"
            rows.append(Row(part.words, f"{bar:·<{_BAR}} {amount}", paged=False))
        rows += [Row("waits at", wait) for wait in first.waits]
        for rank in others:
            parts = sorted(rank.parts, key=lambda part: -part.share)[:3]
            shares = ", ".join(f"{part.words} {percent(100 * part.share)}" for part in parts)
            rows.append(Row(f"rank {rank.rank}", f"{_rates(rank)}; {shares}"))
        facts = [f"{name.replace('_', ' ')} {first.facts[name]}" for name in _FACTS if name in first.facts]
        memory = [f"peak {format_bytes(first.peak_bytes)} of torch's allocator"] if first.peak_bytes else []
        memory += [f"tried again {count(first.alloc_retries, 'time')}"] if first.alloc_retries else []
        compilation = _seconds(first.compile_s) if first.compile_s else ""
        further = (("training", "; ".join(facts)), ("GPU memory", ", ".join(memory)), ("compilation", compilation))
        rows += [Row(label, value) for label, value in further if value]
        return [*([_shares(receipt, first)] if first.parts else []), Rows(rows)]


def _shares(receipt: Receipt, first: StepAnatomy) -> Shares:
    over = stacked_plot(receipt)
    known = {line.name for line in over.lines} if over else set()
    fine = [part for part in first.parts if part.words in (REGIONS["copy"], REGIONS["sync"])]
    shares = [(part, 100 * part.share) for part in first.parts]
    parts = [Share(_colour(p.id), p.words, pct, percent(pct), _seconds(p.seconds_per_step)) for p, pct in shares]
    coarse = over is not None and any(part.words not in known for part in fine)
    colours = [_colour(line.name) for line in over.lines] if over else []
    return Shares(parts, over, colours, _COARSE if coarse else "")


def _colour(region: str) -> str:
    """Return the class of a part by its ID or its words: one colour in the bar and in the plot."""
    places = (place for place, pair in enumerate(REGIONS.items()) if region in pair)
    return f"line{next(places, _COLOURS - 1) % _COLOURS}"


def stacked_plot(receipt: Receipt) -> Plot | None:
    """Return the plot of the steps if it can be stacked: all lines have the same points, which older receipts lack."""
    for plot in receipt.plots if receipt.anatomy else ():
        places = {tuple(x for x, _ in line.points) for line in plot.lines}
        if plot.id == STEPS_PLOT and len(places) == 1 and len(places.pop()) > 1:
            return plot
    return None


def _rates(anatomy: StepAnatomy) -> str:
    parts = [f"{anatomy.steps:,} step{'s' * (anatomy.steps != 1)}"]
    parts += [f"{figure(round(anatomy.steps_per_s, 2))} steps/s"] if anatomy.steps_per_s else []
    parts += [f"{figure(round(anatomy.examples_per_s))} examples/s"] if anatomy.examples_per_s else []
    parts += [f"median {_seconds(anatomy.median_step_s)}"] if anatomy.median_step_s else []
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _diagnosis(run: RunEvidence) -> Diagnosis | None:
    """Return the run's bound; None without GPUs or enough samples, of servers and tunes, or next to another's work."""
    from seatrial.diagnosis.advice import in_framework
    from seatrial.diagnosis.rules import diagnose
    from seatrial.receipt.sections.gpu_contract import shared_with

    window = run.evidence.window
    if not run.expected or run.plan.job.serve is not None or run.plan.job.tuning is not None:
        return None
    if window is None:
        return _cpu_build(run) if run.cause.id == "gpu-contract" else None
    if shared_with(run):
        return None
    inside = [m for m in run.evidence.moments if window.start_s <= m.at_s <= window.end_s]
    samples = [{**m.keys, "t": m.at_s} for m in inside if m.keys.get("type") == Sample.type]
    steps = [{**m.keys, "t": m.at_s} for m in run.evidence.all(Step) if window.start_s <= m.at_s <= window.end_s + 1]
    kind = "torchrun" if run.plan.agent.processes > 1 else run.plan.agent.check
    found = diagnose(samples, steps, run.expected[0].name, _ended(run))
    return found and replace(found, advice=in_framework(found.advice, kind))


def _ended(run: RunEvidence) -> EndFacts | None:
    """Return how the run ended; None while it goes on."""
    from seatrial.diagnosis.happened import EndFacts, reason_by_torch, reasons

    cause, evidence = run.cause, run.evidence
    facts = last_facts(evidence.hook_lines, "cuda_build")
    if cause.id == "running":
        return None
    used = {gpu.uuid for gpu in run.expected} & (set(evidence.contexts) | evidence.seen_by_host)
    on_cpu = len(used) == 0 or any(rank.facts.get("device") == "cpu" for rank in evidence.anatomy)
    why = [reason_by_torch(facts), *reasons(run.plan.job.target, run.plan.job.project)] if on_cpu else []
    return EndFacts(
        failed=None if cause.id in _NOT_FAILED else cause.words,
        cut=cause.words if cause.id in _CUT else None,
        wall_s=evidence.wall_s,
        measured=run.plan.agent.measure_steps and not evidence.written,
        gpus=len(run.expected),
        used=len(used) if evidence.contexts_were_watched or used else None,
        compile_s=number(facts.get("compile_s")) or 0.0,
        compiles_since_s=number(last_facts(evidence.hook_lines, "compiles_since_s").get("compiles_since_s")),
        why_cpu=tuple(filter(None, why)),
    )


def _cpu_build(run: RunEvidence) -> Diagnosis | None:
    """Return the diagnosis of a contract that was broken because torch is a CPU build."""
    from seatrial.diagnosis import Advice, Diagnosis
    from seatrial.diagnosis.happened import reason_by_torch

    for moment in run.evidence.all(GpuKernel):
        torch = moment.keys.get("torch")
        if isinstance(torch, Mapping) and (why := reason_by_torch({**torch, "cuda_build": torch.get("cuda")})):
            change = Advice(why.change, "the GPU that you have")
            return Diagnosis("cpu-only", (), (f"Why: {why.words}", "The script was not started"), (change,))
    return None


def _record(rank: Anatomy) -> StepAnatomy:
    waits = [f"{one.site}: {_times(one.per_step)} a step, {1000 * one.seconds_per_step:.3g} ms" for one in rank.waits]
    spent = {region: seconds for region in REGIONS if (seconds := rank.regions.get(region, 0.0)) > 0}
    steps = max(1, rank.steps - 1)
    parts = [
        StepPart(id=region, words=rank.words(region), seconds_per_step=seconds / steps, share=rank.share(region))
        for region, seconds in spent.items()
    ]
    same = {name: getattr(rank, name) for name in _AS_MEASURED}
    facts = {str(key): _plain(value) for key, value in rank.facts.items() if key != "pid"}
    compile_s = rank.compile_s or None
    return StepAnatomy(**same, parts=tuple(parts), waits=tuple(waits), facts=facts, compile_s=compile_s)


def _times(number: float) -> str:
    return "once" if 0.995 <= number < 1.005 else f"{number:.3g} times"


def _plain(value: object) -> str:
    """Return a fact in words: ``4 workers, pin_memory`` of a loader, else as it is."""
    if isinstance(value, dict):
        return ", ".join(f"{_LOADER.get(str(key), key)} {_plain(item)}" for key, item in list(value.items())[:12])
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "yes" if value is True else "no" if value is False else str(value)[:120]
