"""The GPU contract: the requested GPUs are visible, used by the target, and kept busy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.section import Criterion, Section, Verdict
from seatrial.receipt.sections.criteria import MIN_SAMPLES, Judgement, as_criterion
from seatrial.receipt.sections.measured import FRAMEWORKS
from seatrial.receipt.values import clean, count, gpu_names, percent, short_uuid, text, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seatrial.job.plan import Gpu
    from seatrial.receipt.evidence import RunEvidence

#: Samples of a GPU that prove "never used" in older evidence, which lacks the contexts seen until the end.
_MIN_UNUSED_SAMPLES = 2
#: Samples of activity that prove a context without work. GPM counts all of the time between two samples; one kernel of
#: microseconds in a second is all that rounds to 0.00 % (measured on an H100).
MIN_IDLE_SAMPLES = 5
#: Bytes that torch reserves for a small kernel: cuBLAS's workspace, 32 MiB on Hopper, and blocks of 2 MiB. Source:
#: cuBLAS's documentation, cublasSetWorkspace(); torch/c10/cuda/CUDACachingAllocator.
_SMALL_BYTES = 64 * 2**20

#: The plan's check → how a script of that framework uses the GPU; torch's is in the catalogue.
_HOW_TO_USE = {
    "tensorflow": 'no tf.device("CPU") in the script, and no set_visible_devices([], "GPU")',
    "jax": "no JAX_PLATFORMS=cpu, and no jax.devices('cpu') in the script",
}


class GpuContract(Section):
    """Four criteria; their rows are part of Criteria."""

    def judge(self, run: RunEvidence) -> list[Criterion]:
        ran = "The server ran on the GPU" if run.plan.job.serve is not None else "Training ran on the GPU"
        return [
            as_criterion(run, "gpus-visible", "GPUs visible where the target ran", _gpus_visible),
            as_criterion(run, "ran-on-gpu", ran, _ran_on_gpu),
            as_criterion(run, "trained-on-gpu", "Model trained on the GPU", _trained_on_gpu),
            as_criterion(run, "gpu-busy", "GPU kept busy", _kept_busy),
        ]


def _names(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} {short_uuid(gpu.uuid)}" for gpu in gpus)


def _gpus_visible(run: RunEvidence) -> Judgement:
    checks, wanted = run.evidence.checks, count(run.plan.gpus_asked, run.plan.job.gpus.noun)
    if not checks:
        return Judgement("fail", "the check in the container never reported", wanted)
    agent = run.plan.agent
    silent = (agent.min_nodes or agent.nodes) - len(checks)
    if agent.gpu_count is not None and agent.nodes > 1 and silent > 0:
        return Judgement("fail", f"the check of {count(silent, 'pod')} never reported", wanted)
    visible = {text(entry["uuid"]) for entry in run.evidence.visible}
    missing = [gpu for gpu in run.expected if gpu.uuid not in visible]
    measured = f"{len(run.expected) - len(missing)} of {len(run.expected)} visible"
    failed = next((check for check in checks.values() if check.keys.get("ok") is not True), None)
    if missing:
        error = failed.text("error") if failed else None
        reason = f": {error}" if error else ""
        return Judgement("fail", f"CUDA does not see {_names(missing)}{reason}", wanted, measured)
    if failed:
        return Judgement("fail", failed.text("error") or "the check in the container failed", wanted, measured)
    names = ", ".join(f"{gpu.name} {short_uuid(gpu.uuid)}" for gpu in run.expected)
    return Judgement("pass", f"CUDA sees {names}", wanted, measured)


def _ran_on_gpu(run: RunEvidence) -> Judgement:
    """Require for each GPU the driver's kernel before the start, its framework's, and a CUDA context of the target."""
    evidence, expected = run.evidence, run.expected
    if evidence.target_started is None:
        return Judgement("fail", "the target was not started")
    kernels = [(gpu, kernel) for gpu in expected for kernel in evidence.kernels.get(gpu.uuid, [])]
    failed = ((gpu, kernel) for gpu, kernel in kernels if kernel.keys.get("ok") is not True)
    broken = [f"kernel failed on {_names([gpu])}: {each.text('error') or 'no reason given'}" for gpu, each in failed]
    if broken:
        return Judgement("fail", "; ".join(broken))
    if idle := [gpu for gpu in expected if _computed_nothing(run, gpu)]:
        return Judgement("fail", f"the target opened a CUDA context on {_names(idle)} and did no work there")
    if without := [gpu for gpu in expected if gpu.uuid not in evidence.contexts]:
        sampled = any(gpu.uuid in sample.gpus for gpu in without for sample in evidence.samples)
        if not unused_gpus(run) and not sampled:
            return Judgement("not judged", f"{_names(without)} could not be observed while the target ran")
        return Judgement("fail", f"no CUDA context of the target was seen on {_names(without)}")
    if untried := [gpu for gpu in expected if not _tried(run, gpu)]:
        own = f"{FRAMEWORKS[run.plan.agent.check]}'s own kernel"
        return Judgement("not judged", f"{own} was not tested on {_names(untried)}")
    if shared := shared_with(run, but_for_its_own_work=True):
        return Judgement("not judged", f"{shared}; the driver attributed no SM time to this run")
    seen = min(evidence.contexts[gpu.uuid].at_s for gpu in expected)
    after = format_seconds(max(0.0, seen - evidence.target_started.at_s))
    kinds = {kernel.text("kind") or "driver" for _, kernel in kernels}
    ran = f"a {' and a '.join(sorted(kinds))} kernel ran on each GPU" if kinds else "no kernel was tested"
    return Judgement("pass", f"CUDA context of the target {after} after its start; {ran}")


def shared_with(run: RunEvidence, *, but_for_its_own_work: bool = False) -> str | None:
    """Return which other processes worked on the run's GPUs, or may have; None if the host saw none.

    ``but_for_its_own_work``: leave out GPUs on which the driver attributed SM time to the run.
    """
    for gpu in run.expected:
        seen = run.evidence.witness.get(gpu.uuid)
        if seen is not None and seen.foreign and not (but_for_its_own_work and seen.working):
            who = ", ".join(map(clean, seen.names)) or "another process"
            return f"{who} also worked on {_names([gpu])}, in {seen.foreign} of {seen.looks} checks"
    return None


def _trained_on_gpu(run: RunEvidence) -> Judgement:
    """Require the optimizer's parameters on the GPU.

    Those on the CPU may be offloaded: not judged if the GPU held as much, or more than a small kernel takes.
    """
    if not run.plan.job.criteria.trained_on_gpu:
        return Judgement("not judged", "disabled in [criteria]")
    if not (ranks := [rank for rank in run.evidence.anatomy if text(rank.facts.get("device"))]):
        return Judgement("not judged", "no steps were measured inside the script")
    steps = sum(rank.steps for rank in ranks)
    if not (on_cpu := [rank for rank in ranks if rank.facts["device"] == "cpu"]):
        return Judgement("pass", f"the parameters of {count(steps, 'step')} were on the GPU")
    held, peak = (whole(on_cpu[0].facts.get("parameters")) or 0), on_cpu[0].peak_bytes or 0
    if peak > max(_SMALL_BYTES, 2 * held):  # 16 bits a parameter, where the model computes
        offloaded = f"the parameters were on the CPU, and torch held {format_bytes(peak)} on the GPU"
        return Judgement("not judged", offloaded)
    whose = f"rank {on_cpu[0].rank}: " if len(ranks) > 1 else ""
    words = whose + (f"the optimizer's {held:,} parameters were on the CPU" if held else "the loss was on the CPU")
    return Judgement("fail", words, "parameters on the GPU", "on the CPU")


def _tried(run: RunEvidence, gpu: Gpu) -> bool:
    """Return whether the kernel that the plan requires was run on it."""
    check = run.plan.agent.check
    return check not in FRAMEWORKS or check in [each.text("kind") for each in run.evidence.kernels.get(gpu.uuid, ())]


def _kept_busy(run: RunEvidence) -> Judgement:
    """Require the threshold of every GPU: a mean over GPUs would hide the idle one."""
    if (threshold := run.plan.job.criteria.mean_utilization_pct) is None:
        return Judgement("not judged", "disabled in [criteria]")
    if run.evidence.target_started is None:
        return Judgement("not judged", "the target was not started")
    uses = run.measurements.gpus
    fewest = min((use.samples for use in uses), default=0)
    if fewest < MIN_SAMPLES:
        short = f"the training window was too short: {count(fewest, 'sample')}, {MIN_SAMPLES} needed"
        return Judgement("not judged", short)
    known = {use.uuid: mean for use in uses if (mean := use.utilization_mean_pct) is not None}
    if len(known) < len(uses):
        return Judgement("not judged", "the driver reports no utilisation for this GPU (MIG slices have none)")
    if shared := shared_with(run):
        return Judgement("not judged", shared)
    names = gpu_names(run.expected)
    each = ", ".join(f"{names[uuid]} {percent(mean)}" for uuid, mean in known.items())
    sm = [use.sm_activity_mean_pct for use in uses if use.sm_activity_mean_pct is not None]
    worked = f"; SM activity {percent(sum(sm) / len(sm))}" if sm else ""
    verdict: Verdict = "pass" if min(known.values()) >= threshold else "fail"
    evidence = f"mean utilisation {each} over {fewest} samples{worked}"
    return Judgement(verdict, evidence, f"at least {percent(threshold)}", each)


def unused_gpus(run: RunEvidence) -> tuple[Gpu, ...]:
    """Return the requested GPUs on which the target, which finished, had no CUDA context, or one without work.

    The agent looks every 0.05 to 0.1 s at first; if it could not look until the end, nothing is known.
    """
    exited, started = run.evidence.exited, run.evidence.target_started
    if exited is None or started is None or exited.number("exit_code") != 0:
        return ()
    seen = run.evidence.seen_by_host | run.evidence.contexts.keys()
    sampled = Counter(uuid for s in run.evidence.samples if started.at_s <= s.at_s <= exited.at_s for uuid in s.gpus)
    least = 0 if run.evidence.contexts_were_watched else _MIN_UNUSED_SAMPLES
    unseen = {gpu.uuid for gpu in run.expected if gpu.uuid not in seen and sampled[gpu.uuid] >= least}
    return tuple(gpu for gpu in run.expected if gpu.uuid in unseen or _computed_nothing(run, gpu))


def _computed_nothing(run: RunEvidence, gpu: Gpu) -> bool:
    """Return whether the GPU's own counters show no work of its SMs from the target's context to its end."""
    if (context := run.evidence.contexts.get(gpu.uuid)) is None:
        return False
    after = [s.gpus[gpu.uuid] for s in run.evidence.samples if s.at_s >= context.at_s and gpu.uuid in s.gpus]
    worked = [reading["sm_activity_pct"] for reading in after if "sm_activity_pct" in reading]
    return len(worked) >= MIN_IDLE_SAMPLES and not any(worked)


def not_used_finding(run: RunEvidence) -> Finding | None:
    """Return the finding of requested GPUs that were not used, with a probable cause, or None."""
    if not (unused := unused_gpus(run)):
        return None
    names = ", ".join(f"GPU {gpu.index} ({short_uuid(gpu.uuid)})" for gpu in unused)
    evidence = [
        f"a CUDA context on {gpu.uuid}, and no work: SM activity 0.00 % in every sample to the end"
        if gpu.uuid in run.evidence.contexts
        else f"no CUDA context of the target on {gpu.uuid} in any sample"
        for gpu in unused
    ]
    used = len(run.expected) - len(unused)
    cause: str | None = None
    fix: str | None = None
    if used and (ranks := run.plan.agent.processes) > 1:
        cause = f"{ranks} ranks run, and {count(used, 'GPU')} worked: a rank idles, trains on the CPU or shares a GPU"
        fix = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), and the model and batches of each rank on its GPU'
    elif used:
        cause = f"The script uses {count(used, 'GPU')}; one process uses one GPU unless it is written for more"
        fix = f"seatrial run --gpus {used} …   # or --launcher torchrun for a distributed script"
    elif how := _HOW_TO_USE.get(run.plan.agent.check):
        fix = f"{how}; or seatrial run --gpus none …"
    return by_id("gpu-not-used").finding(evidence, values={"names": names}, cause=cause, fix=fix)
