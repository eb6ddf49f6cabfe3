"""The built-in criteria: one function each, in the table at the end. Each says pass, fail or not judged, and why.

"Not judged" means that there is nothing to judge by, or that the question was not asked. It never means "probably".
A criterion that was asked for explicitly and has no evidence fails.
"""

from __future__ import annotations

from collections.abc import Callable

from seatrial.events import HostLaunched
from seatrial.findings.catalogue import entries
from seatrial.images.build.size import python_mount
from seatrial.job.condition import holds
from seatrial.job.model import Criteria
from seatrial.job.plan import Gpu
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.evidence.fields import clean, text
from seatrial.receipt.formatting import count, figure, gpu_names, percent, quote, short_uuid
from seatrial.receipt.judging.exported_model import is_export, judge_exported_model
from seatrial.receipt.judging.gpu_contract import computed_nothing, unused_gpus
from seatrial.receipt.judging.judgement import Judgement
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.memory_held import FRAMEWORKS
from seatrial.receipt.judging.saved_model import judge_saved_model
from seatrial.receipt.model import Criterion, ExitCause, Verdict

Judge = Callable[[Case, ExitCause], Judgement]

#: Fewer samples than this in the training window say nothing of a mean.
MIN_SAMPLES = 3

#: Layers of known failures that have nothing to do with the GPU: findings, but not held against the CUDA criterion.
_NOT_OF_CUDA = ("disk", "training", "script")

#: Of other layers, likewise.
_NEITHER = {
    "address-in-use",
    "connection-refused",
    "download-failed",
    "gated-download",
    "host-out-of-memory",
    "loss-not-finite",
    "mount-permission",
    "no-c-compiler",
    "no-input",
    "no-network",
    "no-terminal",
    "older-keras",
    "permission-denied",
    "project-module-not-on-path",
    "python-module-missing",
    "python-part-missing",
    "ranks-host-unknown",
    "shared-memory-too-small",
    "too-many-open-files",
    "too-many-processes",
    "torch-six-removed",
    "user-unknown",
}

#: Of those layers, what CUDA itself reports.
_OF_CUDA = {
    "bitsandbytes-cuda",
    "cuda-after-fork",
    "cuda-libraries-mixed",
    "cuda-library-missing",
    "cudnn-no-algorithm",
    "kernel-timeout",
    "ranks-share-a-gpu",
}


def judge_criteria(case: Case, cause: ExitCause) -> tuple[Criterion, ...]:
    """Every built-in criterion in the order of CRITERIA, then the user's metrics."""
    titles = OF_SERVING if case.plan.job.serve is not None else {}
    judged = [_criterion(id, titles.get(id, title), _judged(id, judge, case, cause)) for id, title, judge in CRITERIA]
    if is_export(case):
        judged.append(_criterion("export-agrees", "Exported model agrees", judge_exported_model(case)))
    for name, condition in case.plan.job.criteria.metrics.items():
        judged.append(_criterion(f"metric-{name}", f"Metric {name}", _metric(case, name, condition)))
    return tuple(criterion.model_copy(update={"asked": _asked(criterion, case)}) for criterion in judged)


#: Criterion → the key of [criteria] that asks for it, where it has a default.
_KEYS = {"gpu-busy": "mean_utilization_pct", "image-size": "max_image_bytes", "model-saved": "model"}

#: What ``--gpus`` asks for, ``auto`` that found some included.
GPU_CONTRACT = ("gpus-visible", "ran-on-gpu")


def _asked(criterion: Criterion, case: Case) -> bool:
    """Whether the run was asked for it. A question that could not arise (a GPU's on a CPU run, an image's of a local
    run) was not asked; --strict asks for all that could be judged."""
    if case.plan.job.strict and criterion.verdict != "not judged":
        return True
    if criterion.id == "clean-output":
        return False
    key = _KEYS.get(criterion.id)
    if key is not None and not _is_set(case.plan.job.criteria, key):
        return False
    if criterion.id in (*GPU_CONTRACT, "gpu-busy"):
        return case.gpus_required and not (criterion.id in OF_TRAINING and _trains_nothing(case))
    return criterion.id not in ("in-time", "image-size", "model-saved") or criterion.verdict != "not judged"


def _is_set(criteria: Criteria, key: str) -> bool:
    """Whether somebody asked for it: one that is switched off was not asked for."""
    return key in criteria.model_fields_set and getattr(criteria, key) is not None


#: What neither a server is asked (it waits for requests, ends when it is stopped, and saves nothing) nor a tune.
OF_TRAINING = ("gpu-busy", "in-time", "model-saved")
OF_SERVING = {"ran-on-gpu": "The server ran on the GPU"}


def _trains_nothing(case: Case) -> str | None:
    """Why a run has no training to be judged, or None."""
    if case.plan.job.serve is not None:
        return "it serves"
    return "it tries changes" if case.plan.job.tuning is not None else None


def _judged(id: str, judge: Judge, case: Case, cause: ExitCause) -> Judgement:
    reason = _trains_nothing(case)
    if reason is not None and id in OF_TRAINING:
        return Judgement("not judged", reason)
    return judge(case, cause)


def _criterion(id: str, title: str, judgement: Judgement) -> Criterion:
    return Criterion(id=id, title=title, **judgement._asdict())


def _no_gpu(case: Case) -> Judgement | None:
    """The judgement of every GPU criterion on a run without one."""
    if case.gpus_required:
        return None
    if case.plan.agent.gpu_mode == "auto-cpu":
        return Judgement("not judged", "no GPU was found, so --gpus auto ran on the CPU")
    return Judgement("not judged", "no GPU was requested")


def _gpus_visible(case: Case, cause: ExitCause) -> Judgement:
    if no_gpu := _no_gpu(case):
        return no_gpu
    checks, asked = case.evidence.checks, count(case.plan.gpus_asked, case.plan.job.gpus.noun)
    if not checks:
        return Judgement("fail", "the check in the container never reported", asked)
    agent = case.plan.agent
    if agent.gpu_count is not None and agent.nodes > 1:
        silent = (agent.min_nodes or agent.nodes) - len(checks)
        if silent > 0:
            return Judgement("fail", f"the check of {count(silent, 'pod')} never reported", asked)
    visible = {text(entry["uuid"]) for entry in case.evidence.visible}
    missing = [gpu for gpu in case.expected if gpu.uuid not in visible]
    measured = f"{len(case.expected) - len(missing)} of {len(case.expected)} visible"
    failed = next((check for check in checks.values() if check.keys.get("ok") is not True), None)
    if missing:
        names = ", ".join(f"GPU {gpu.index} {short_uuid(gpu.uuid)}" for gpu in missing)
        error = failed.text("error") if failed else None
        return Judgement("fail", f"CUDA does not see {names}" + (f": {error}" if error else ""), asked, measured)
    if failed:
        return Judgement("fail", failed.text("error") or "the check in the container failed", asked, measured)
    names = ", ".join(f"{gpu.name} {short_uuid(gpu.uuid)}" for gpu in case.expected)
    return Judgement("pass", f"CUDA sees {names}", asked, measured)


def _ran_on_gpu(case: Case, cause: ExitCause) -> Judgement:
    """Proofs for each GPU: the driver's kernel ran on it before the start, its framework's at its beginning, and the
    target had a CUDA context on it."""
    if no_gpu := _no_gpu(case):
        return no_gpu
    if case.evidence.target_started is None:
        return Judgement("fail", "the target was not started")
    broken = [
        f"kernel failed on GPU {gpu.index} {short_uuid(gpu.uuid)}: {kernel.text('error') or 'no reason given'}"
        for gpu in case.expected
        for kernel in case.evidence.kernels.get(gpu.uuid, [])
        if kernel.keys.get("ok") is not True
    ]
    if broken:
        return Judgement("fail", "; ".join(broken))
    without = [gpu for gpu in case.expected if gpu.uuid not in case.evidence.contexts]
    if idle := [gpu for gpu in case.expected if computed_nothing(case, gpu)]:
        names = ", ".join(f"GPU {gpu.index} {short_uuid(gpu.uuid)}" for gpu in idle)
        return Judgement("fail", f"the target opened a CUDA context on {names} and did no work there")
    if without:
        names = ", ".join(f"GPU {gpu.index} {short_uuid(gpu.uuid)}" for gpu in without)
        if not unused_gpus(case) and not any(
            gpu.uuid in sample.gpus for gpu in without for sample in case.evidence.samples
        ):
            return Judgement("not judged", f"{names} could not be observed while the target ran")
        return Judgement("fail", f"no CUDA context of the target was seen on {names}")
    if untried := [gpu for gpu in case.expected if not _tried(case, gpu)]:
        names = ", ".join(f"GPU {gpu.index} {short_uuid(gpu.uuid)}" for gpu in untried)
        return Judgement("not judged", f"{FRAMEWORKS[case.plan.agent.check]}'s own kernel was not tested on {names}")
    seen = min(case.evidence.contexts[gpu.uuid].at_s for gpu in case.expected)
    after = format_seconds(max(0.0, seen - case.evidence.target_started.at_s))
    kinds = {k.text("kind") or "driver" for gpu in case.expected for k in case.evidence.kernels.get(gpu.uuid, [])}
    kernel = f"a {' and a '.join(sorted(kinds))} kernel ran on each GPU" if kinds else "no kernel was tested"
    return Judgement("pass", f"CUDA context of the target {after} after its start; {kernel}")


def _tried(case: Case, gpu: Gpu) -> bool:
    """Whether the kernel that the plan asks for was run on it; how it went, the caller knows."""
    if case.plan.agent.check not in FRAMEWORKS:
        return True
    return any(kernel.text("kind") == case.plan.agent.check for kernel in case.evidence.kernels.get(gpu.uuid, []))


def _kept_busy(case: Case, cause: ExitCause) -> Judgement:
    """Every GPU asked for must reach the threshold: a mean over GPUs would hide the one that idles."""
    if no_gpu := _no_gpu(case):
        return no_gpu
    threshold = case.plan.job.criteria.mean_utilization_pct
    if threshold is None:
        return Judgement("not judged", "disabled in [criteria]")
    if case.evidence.target_started is None:
        return Judgement("not judged", "the target was not started")
    uses = case.measurements.gpus
    fewest = min((use.samples for use in uses), default=0)
    if fewest < MIN_SAMPLES:
        return Judgement(
            "not judged", f"the training window was too short: {count(fewest, 'sample')}, {MIN_SAMPLES} needed"
        )
    known = {use.uuid: mean for use in uses if (mean := use.utilization_mean_pct) is not None}
    if len(known) < len(uses):
        return Judgement("not judged", "the driver reports no utilisation for this GPU (MIG slices have none)")
    names = gpu_names(case.expected)
    each = ", ".join(f"{names[uuid]} {percent(mean)}" for uuid, mean in known.items())
    sm = [use.sm_activity_mean_pct for use in uses if use.sm_activity_mean_pct is not None]
    worked = f"; SM activity {percent(sum(sm) / len(sm))}" if sm else ""
    verdict: Verdict = "pass" if min(known.values()) >= threshold else "fail"
    return Judgement(
        verdict, f"mean utilisation {each} over {fewest} samples{worked}", f"at least {percent(threshold)}", each
    )


def _in_time(case: Case, cause: ExitCause) -> Judgement:
    limit = case.plan.job.criteria.finished_within_s or case.plan.job.timeout_s
    wall_s = case.measurements.wall_s
    if limit is None:
        return Judgement("not judged", "no time limit was set")
    expected = f"within {format_seconds(limit)}"
    if wall_s is None:
        return Judgement("fail", "the target never ran", expected, None)
    measured = format_seconds(wall_s)
    if cause.id not in ("finished", "gpu-not-used"):
        return Judgement("fail", f"it did not finish: it ended after {measured}", expected, measured)
    return Judgement(("pass" if wall_s <= limit else "fail"), f"finished in {measured}", expected, measured)


def _model_saved(case: Case, cause: ExitCause) -> Judgement:
    return judge_saved_model(case)


def _clean_output(case: Case, cause: ExitCause) -> Judgement:
    if no_gpu := _no_gpu(case):
        return no_gpu
    if case.evidence.target_started is None:
        return Judgement("not judged", "the target was not started")
    neither = _NEITHER | {entry.id for entry in entries(_NOT_OF_CUDA)} - _OF_CUDA
    trouble = [f for f in case.output.findings if f.severity != "info" and f.id not in neither]
    if trouble:
        shown = f" ({quote(trouble[0].evidence[0])})" if trouble[0].evidence else ""
        return Judgement("fail", f"{', '.join(f.id for f in trouble)}{shown}")
    return Judgement("pass", "no known CUDA failure in stdout or stderr")


def _image_size(case: Case, cause: ExitCause) -> Judgement:
    limit, size = case.plan.job.criteria.max_image_bytes, case.image_bytes
    if case.plan.on_the_host:
        return Judgement("not judged", "a local run has no image")
    if limit is None:
        return Judgement("not judged", "disabled in [criteria]")
    if case.evidence.first(HostLaunched) is None:
        return Judgement("not judged", "the container was not started")
    if (mount := python_mount(case.plan)) is not None:
        return Judgement("not judged", f"Python comes from the mount {mount}, not from the image")
    if size is None:
        return Judgement("not judged", "the image's files were not counted")
    verdict: Verdict = "pass" if size <= limit else "fail"
    return Judgement(
        verdict, f"the image is {format_bytes(size)}", f"at most {format_bytes(limit)}", format_bytes(size)
    )


def _metric(case: Case, name: str, condition: str) -> Judgement:
    """A condition on the last value reported under a name; asked for and never reported is a failure."""
    if holds(condition, 0.0) is None:
        return Judgement("fail", f"the condition {clean(condition)!r} is invalid; write, for example, '>= 0.985'")
    found = case.evidence.steps.find(name)
    if found is None:
        told = ", ".join(list(case.evidence.steps.series)[:8]) or "no number at all"
        return Judgement(
            "fail", f"the target never reported {name} to $SEATRIAL_EVENTS; it reported {told}", condition, None
        )
    reported_as, points = found
    last = points[-1][1]
    verdict: Verdict = "pass" if holds(condition, last) else "fail"
    return Judgement(verdict, f"last {reported_as}: {figure(last)}", condition, figure(last))


#: ID, title and judge of each built-in criterion, in the order receipts show them.
CRITERIA: tuple[tuple[str, str, Judge], ...] = (
    ("gpus-visible", "GPUs visible where the target ran", _gpus_visible),
    ("ran-on-gpu", "Training ran on the GPU", _ran_on_gpu),
    ("gpu-busy", "GPU kept busy", _kept_busy),
    ("in-time", "Finished within the time limit", _in_time),
    ("model-saved", "Model saved", _model_saved),
    ("clean-output", "No CUDA error or warning in the output", _clean_output),
    ("image-size", "Image small enough", _image_size),
)
