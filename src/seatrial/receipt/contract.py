"""The GPU contract after the fact: a GPU that was asked for and never used breaks it, though the target finished."""

from __future__ import annotations

from seatrial.findings.finding import Finding
from seatrial.job.plan import Gpu
from seatrial.receipt.case import Case, target_line
from seatrial.receipt.words import count, short_uuid

#: Samples of a GPU while the target ran that it takes to say "never used". The agent looks for contexts every
#: 0.25 s at first and takes a sample a second: with fewer, a short use may have been missed.
MIN_SAMPLES = 2


def unused_gpus(case: Case) -> tuple[Gpu, ...]:
    """GPUs asked for on which the target, which finished, was never seen to have a CUDA context.

    A GPU that no sample could see is not among them: nothing is known of it then.
    """
    exited, started = case.evidence.exited, case.evidence.target_started
    if exited is None or started is None or exited.number("exit_code") != 0:
        return ()
    running = [s for s in case.evidence.samples if started.at_s <= s.at_s <= exited.at_s]
    return tuple(
        gpu
        for gpu in case.expected
        if gpu.uuid not in case.evidence.contexts and sum(gpu.uuid in s.gpus for s in running) >= MIN_SAMPLES
    )


def not_used_finding(case: Case, unused: tuple[Gpu, ...]) -> Finding:
    """Why a GPU was asked for and not used, probably, and what to do."""
    names = ", ".join(f"GPU {gpu.index} ({short_uuid(gpu.uuid)})" for gpu in unused)
    evidence = [f"no CUDA context of the target on {gpu.uuid} in any sample" for gpu in unused]
    used = len(case.expected) - len(unused)
    if used:
        cause = f"The script uses {count(used, 'GPU')}; one process drives one GPU unless it is written for more"
        fix = f"seatrial run --gpus {used} {target_line(case.plan)}   (or --launcher torchrun for a distributed script)"
    else:
        cause = "The script never moved its model or data to the GPU, or its framework is a CPU build"
        fix = 'device = "cuda" in the script: model.to("cuda"), data.to("cuda"); or seatrial run --gpus none'
    return Finding("gpu-not-used", "error", f"Asked for and not used: {names}", cause, fix, evidence)
