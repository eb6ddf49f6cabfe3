"""The GPU contract after the fact: a GPU that was asked for and never used breaks it, though the target finished."""

from __future__ import annotations

from seatrial.events import AgentFinished
from seatrial.findings.finding import Finding
from seatrial.job.plan import Gpu
from seatrial.receipt.formatting import count, short_uuid
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.trust import witness

#: Of evidence of before agents told what they had seen at the end: samples of a GPU that it takes to say "never used".
MIN_SAMPLES = 2

#: Samples of activity that it takes to say that a context did no work. GPM counts all of the time between two samples;
#: one kernel of microseconds in a second is all that rounds to 0.00 % (measured on an H100).
MIN_IDLE_SAMPLES = 5


def unused_gpus(case: Case) -> tuple[Gpu, ...]:
    """GPUs asked for on which the target, which finished, had no CUDA context, or one that computed nothing.

    The agent looks every 0.05 to 0.1 s at first; where it could not look until the end, nothing is known.
    """
    exited, started = case.evidence.exited, case.evidence.target_started
    if exited is None or started is None or exited.number("exit_code") != 0:
        return ()
    running = [s for s in case.evidence.samples if started.at_s <= s.at_s <= exited.at_s]
    finished = case.evidence.last(AgentFinished)
    looked = finished is not None and isinstance(finished.keys.get("contexts"), list)

    by_host = {uuid for uuid, (_, ours, _) in witness(case.evidence).items() if ours}

    def never_seen(gpu: Gpu) -> bool:
        if gpu.uuid in by_host:
            return False
        sampled = sum(gpu.uuid in sample.gpus for sample in running)
        return gpu.uuid not in case.evidence.contexts and (looked or sampled >= MIN_SAMPLES)

    return tuple(gpu for gpu in case.expected if never_seen(gpu) or computed_nothing(case, gpu))


def computed_nothing(case: Case, gpu: Gpu) -> bool:
    """Whether the GPU's own counters show no work of its SMs from before the target's context to its end."""
    context = case.evidence.contexts.get(gpu.uuid)
    if context is None:
        return False
    after = [s.gpus[gpu.uuid] for s in case.evidence.samples if s.at_s >= context.at_s and gpu.uuid in s.gpus]
    worked = [reading["sm_activity_pct"] for reading in after if "sm_activity_pct" in reading]
    return len(worked) >= MIN_IDLE_SAMPLES and not any(worked)


#: The plan's check → what a script of that framework does to use the GPU.
_HOW_TO_USE = {
    "torch": 'device = "cuda" in the script: model.to("cuda"), data.to("cuda")',
    "tensorflow": 'no tf.device("CPU") in the script, and no set_visible_devices([], "GPU")',
    "jax": "no JAX_PLATFORMS=cpu, and no jax.devices('cpu') in the script",
}


def not_used_finding(case: Case, unused: tuple[Gpu, ...]) -> Finding:
    """Why a GPU was asked for and not used, probably, and what to do."""
    names = ", ".join(f"GPU {gpu.index} ({short_uuid(gpu.uuid)})" for gpu in unused)
    evidence = [
        f"a CUDA context on {gpu.uuid}, and no work: SM activity 0.00 % in every sample to the end"
        if gpu.uuid in case.evidence.contexts
        else f"no CUDA context of the target on {gpu.uuid} in any sample"
        for gpu in unused
    ]
    used = len(case.expected) - len(unused)
    if used:
        cause = f"The script uses {count(used, 'GPU')}; one process uses one GPU unless it is written for more"
        fix = f"seatrial run --gpus {used} …   # or --launcher torchrun for a distributed script"
    else:
        cause = "The script never moved its model or data to the GPU, or its framework is a CPU build"
        fix = f"{_HOW_TO_USE.get(case.plan.agent.check, _HOW_TO_USE['torch'])}; or seatrial run --gpus none …"
    return Finding("gpu-not-used", "error", f"Requested but not used: {names}", cause, fix, evidence)
