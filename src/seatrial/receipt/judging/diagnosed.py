"""The diagnosis of a run's training window, and the anatomy of its steps, as its receipt keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.diagnosis.anatomy import REGIONS, Anatomy, compiles_since_s, read_facts
from seatrial.diagnosis.diagnosis import Advice, Diagnosis
from seatrial.diagnosis.in_framework import in_framework
from seatrial.diagnosis.rules import diagnose
from seatrial.diagnosis.stays_on_cpu import Reason, reasons, told_by_torch
from seatrial.diagnosis.training_happened import Ended
from seatrial.events import AgentFinished, GpuKernel, Sample, Step
from seatrial.receipt.evidence.fields import number
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.trust import witness
from seatrial.receipt.model import AdviceRecord, DiagnosisRecord, ExitCause, StepAnatomy, StepPart

#: Ranks whose steps a receipt takes apart.
MOST_RANKS = 8

#: Of a loader: what its setting is called in words, where the name alone says little.
_LOADER = {"length": "batches a pass", "batch_size": "batch size"}

#: How a run ends without having failed.
_CUT = frozenset({"pruned", "stopped", "timeout"})
_NOT_FAILED = frozenset({"finished", "running", "gpu-not-used"}) | _CUT


def diagnose_case(case: Case, cause: ExitCause) -> DiagnosisRecord | None:
    """What bounded the run; None without GPUs, of a server, of a tune, or with too few samples in the window."""
    window = case.evidence.window
    if not case.expected or case.plan.job.serve is not None or case.plan.job.tuning is not None:
        return None
    if window is None:
        return _kept(_cpu_build(case)) if cause.id == "gpu-contract" else None
    inside = [m for m in case.evidence.moments if window.start_s <= m.at_s <= window.end_s]
    samples = [{**m.keys, "t": m.at_s} for m in inside if m.keys.get("type") == Sample.type]
    steps = [{**m.keys, "t": m.at_s} for m in case.evidence.all(Step) if window.start_s <= m.at_s <= window.end_s + 1]
    found = diagnose(samples, steps, case.expected[0].name, _ended(case, cause))
    return _kept(found and replace(found, advice=in_framework(found.advice, case.plan.agent.check)))


def _ended(case: Case, cause: ExitCause) -> Ended | None:
    """How it ended; None while it goes on."""
    if cause.id == "running":
        return None
    finished = case.evidence.last(AgentFinished)
    looked = finished is not None and isinstance(finished.keys.get("contexts"), list)
    used = {gpu.uuid for gpu in case.expected} & (set(case.evidence.contexts) | _seen_by_host(case))
    on_cpu = len(used) == 0 or any(rank.facts.get("device") == "cpu" for rank in case.evidence.anatomy)
    return Ended(
        failed=None if cause.id in _NOT_FAILED else cause.words,
        cut=cause.words if cause.id in _CUT else None,
        wall_s=case.evidence.wall_s,
        measured=case.plan.agent.measure_steps and not case.evidence.written,
        gpus=len(case.expected),
        used=len(used) if looked or used else None,
        compile_s=number(_last_facts(case).get("compile_s")) or 0.0,
        compiles_since_s=compiles_since_s(moment.keys for moment in case.evidence.all(Step)),
        why_cpu=_why_cpu(case) if on_cpu else (),
    )


def _seen_by_host(case: Case) -> set[str]:
    return {uuid for uuid, (_, ours, _) in witness(case.evidence).items() if ours}


def _why_cpu(case: Case) -> tuple[Reason, ...]:
    by_torch = told_by_torch(_last_facts(case))
    read = reasons(case.plan.job.target, case.plan.job.project)
    return read if by_torch is None else (by_torch, *read)


def _last_facts(case: Case) -> Mapping[str, Any]:
    return read_facts(moment.keys for moment in case.evidence.all(Step))


def _cpu_build(case: Case) -> Diagnosis | None:
    """A contract that was broken because torch is a CPU build."""
    for moment in case.evidence.all(GpuKernel):
        torch = moment.keys.get("torch")
        if isinstance(torch, dict) and (why := told_by_torch({**torch, "cuda_build": torch.get("cuda")})):
            change = Advice(why.change, "the GPU that you have")
            return Diagnosis("cpu-only", (), (f"Why: {why.words}", "The script was not started"), (change,))
    return None


def _kept(found: Diagnosis | None) -> DiagnosisRecord | None:
    if found is None:
        return None
    return DiagnosisRecord(
        cause=found.cause,
        words=found.words,
        tags=found.tags,
        evidence=found.evidence,
        advice=tuple(AdviceRecord(change=advice.change, gain=advice.gain) for advice in found.advice),
        mfu=found.mfu,
    )


def anatomy_of(case: Case) -> tuple[StepAnatomy, ...]:
    """The steps of each rank, as the hook measured them."""
    return tuple(_record(rank) for rank in case.evidence.anatomy[:MOST_RANKS] if rank.steps > 1)


def _record(rank: Anatomy) -> StepAnatomy:
    return StepAnatomy(
        rank=rank.rank,
        steps=rank.steps,
        seconds=rank.seconds,
        steps_per_s=rank.steps_per_s,
        examples_per_s=rank.examples_per_s,
        median_step_s=rank.median_step_s,
        parts=tuple(_parts(rank)),
        waits=tuple(
            f"{wait.site}: {_times(wait.per_step)} a step, {1000 * wait.seconds_per_step:.3g} ms" for wait in rank.waits
        ),
        facts={str(key): _plain(value) for key, value in rank.facts.items() if key != "pid"},
        peak_bytes=rank.peak_bytes,
        alloc_retries=rank.alloc_retries,
        compile_s=rank.compile_s or None,
    )


def _parts(rank: Anatomy) -> Iterator[StepPart]:
    for region in REGIONS:
        spent = rank.regions.get(region, 0.0)
        if spent > 0:
            yield StepPart(
                id=region,
                words=rank.words(region),
                seconds_per_step=spent / max(1, rank.steps - 1),
                share=rank.share(region),
            )


def _times(number: float) -> str:
    return "once" if 0.995 <= number < 1.005 else f"{number:.3g} times"


def _plain(value: object) -> str:
    """A fact in words: ``4 workers, pin_memory`` of a loader, else as it is."""
    if isinstance(value, dict):
        return ", ".join(f"{_LOADER.get(str(key), key)} {_plain(item)}" for key, item in list(value.items())[:12])
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "yes" if value is True else "no" if value is False else str(value)[:120]
