"""Judging a run: plan, events, output and the engine's last word → Receipt.

Exit code of the command line, by the first rule that holds:

    3  the GPU contract was broken: before the start (exit cause ``gpu-contract``), because a GPU that was asked for
       was never used by a target that finished (``gpu-not-used``, or a criterion of criteria.GPU_CONTRACT failed), or
       because the evidence contradicts itself
    5  the run never started, or the agent or its evidence was lost, so that nobody can say what the target did
    1  the target failed, was killed, ran out of time or memory, or was ended from outside before it had finished
    4  a criterion failed and the job is strict
    0  otherwise; also for a run that still goes on

What the criteria make of the headline: seatrial.receipt.outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.backends.base import ImageFacts, State
from seatrial.errors import (
    EXIT_CRITERIA,
    EXIT_DONE,
    EXIT_ENGINE,
    EXIT_GPU_CONTRACT,
    EXIT_INTERRUPTED,
    EXIT_TARGET_FAILED,
)
from seatrial.events import Chain, ReportUnreadable
from seatrial.findings.aftermath import aftermath_last
from seatrial.findings.catalogue import AT_START
from seatrial.findings.finding import Finding
from seatrial.findings.match import match_text
from seatrial.job.plan import Plan
from seatrial.receipt.evidence.facts import gather
from seatrial.receipt.evidence.log_end import read_log_end
from seatrial.receipt.evidence.output import Output, read_output
from seatrial.receipt.formatting import count
from seatrial.receipt.judging.criteria import GPU_CONTRACT, judge_criteria
from seatrial.receipt.judging.diagnosed import anatomy_of, diagnose_case
from seatrial.receipt.judging.did_nothing import did_nothing, failed_quietly, went_to_background
from seatrial.receipt.judging.exit_cause import ended_unfinished, exit_cause, interrupted_by_user, stopped_by_user
from seatrial.receipt.judging.gpu_contract import not_used_finding, unused_gpus
from seatrial.receipt.judging.header import make_header
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.judging.measurements import measure
from seatrial.receipt.judging.memory_held import not_held_finding
from seatrial.receipt.judging.missing_file import missing_file
from seatrial.receipt.judging.of_this_run import of_this_run
from seatrial.receipt.judging.out_of_memory import out_of_memory
from seatrial.receipt.judging.outside_files import lost_files, tell_outside
from seatrial.receipt.judging.pasteable import pasteable
from seatrial.receipt.judging.plots import make_plots
from seatrial.receipt.judging.serving import serving_of
from seatrial.receipt.judging.timeline import make_timeline
from seatrial.receipt.judging.trust import (
    alterable,
    contradiction_finding,
    contradictions,
    lost_output_lines,
    make_seal,
    missing_lines,
    refused,
    refused_finding,
)
from seatrial.receipt.judging.tuned import with_result
from seatrial.receipt.model import Criteria, Criterion, ExitCause, FindingRecord, Receipt
from seatrial.receipt.outcome import DOUBTFUL
from seatrial.receipt.without_names import without_names

#: Frameworks say these where there is no GPU, and go on.
EXPECTED_WITHOUT_GPU = {
    "gpu-taken-for-granted",
    "jax-cuda-failed",
    "jax-no-gpu",
    "libcuda-missing",
    "no-cuda-device",
    "pin-memory-without-gpu",
    "tensorflow-no-gpu",
    "tensorflow-without-cuda",
}

#: A script that went on without them missed nothing.
EXPECTED_WITHOUT_TERMINAL = {"no-input", "no-terminal"}


# Nine parameters: what is known of a run comes from as many places, and seven of them are named at the call.
def judge(
    plan: Plan,
    events: Sequence[dict[str, Any]],
    *,
    skipped_lines: int,
    state: State | None,
    run_dir: Path,
    now: float,
    image: ImageFacts | None,
    output: Output | None = None,
    chain: Chain | None = None,
) -> Receipt:
    """The receipt of a run. Reads the run's logs and looks for the saved model; changes nothing.

    Args:
        events: of events.read, in the order of the file.
        skipped_lines: lines of that file that were no JSON object.
        state: what the engine says of the run, or None when it cannot be asked.
        now: Unix time in seconds.
        chain: of events.jsonl, followed to its end; None while the run goes on.
        output: what the target printed, as far as it matters; None: read it from the logs (12 s for a million lines).
    """
    evidence = gather(events, skipped_lines)
    expected = [gpu.uuid for gpu in plan.agent.gpus] if plan.agent.gpu_mode == "required" else []
    case = Case(
        plan=plan,
        evidence=evidence,
        output=read_output(run_dir) if output is None else output,
        measurements=measure(evidence, expected, plan.agent.gpu_memory_bytes),
        state=state,
        engine_findings=tuple(match_text(state.error, AT_START)) if state and state.error else (),
        run_dir=run_dir,
        image=image,
    )
    case = replace(case, contradictions=tuple(contradictions(case, chain)))
    cause = exit_cause(case)
    criteria = judge_criteria(case, cause)
    findings = _findings(case, cause)
    doubts = [DOUBTFUL[finding.id] for finding in findings if finding.id in DOUBTFUL]
    if doubts:
        cause = cause.model_copy(update={"words": f"{cause.words}, but {doubts[0]}"})
    tune = evidence.tune if plan.job.tuning is not None else None
    cause = with_result(cause, tune)
    receipt = Receipt(
        header=make_header(case, now),
        seal=make_seal(case, chain),
        exit_cause=cause,
        exit_code=_exit_code(case, cause, criteria),
        warnings=_warnings(case, cause),
        criteria=Criteria(criteria),
        findings=tuple(_record(finding) for finding in findings),
        diagnosis=diagnose_case(case, cause),
        anatomy=anatomy_of(case),
        measurements=case.measurements,
        serving=serving_of(case),
        tune=tune,
        changes=evidence.changed(plan.agent.changes or {}),
        timeline=make_timeline(evidence),
        plots=make_plots(case),
    )
    if receipt.outcome.id == "failed":
        receipt = receipt.model_copy(update={"ending": read_log_end(run_dir)})
    return receipt if plan.job.with_names else without_names(receipt, plan.job)


def _findings(case: Case, cause: ExitCause) -> list[Finding]:
    """What broke the contract, what the agent found, what the output shows; one of each ID.

    A CPU run that finished is not told that it had no GPU, nor any run that finished that it had no terminal.
    """
    unused = unused_gpus(case)
    found = [contradiction_finding(case.contradictions)] if case.contradictions else []
    found += [not_used_finding(case, unused)] if unused else []
    found += [refused_finding(claims)] if (claims := refused(case.evidence)) else []
    found += [*case.evidence.findings, *case.engine_findings]
    found += [of_this_run(finding, case.plan) for finding in case.output.findings]
    found += [not_held] if (not_held := not_held_finding(case.measurements.gpu_memory)) else []
    found += [absent] if (absent := missing_file(case, cause)) else []
    found += [lost] if (lost := lost_files(case)) else []
    quiet = (out_of_memory, did_nothing, failed_quietly, went_to_background)
    found += [finding for look in quiet if (finding := look(case, cause))]
    if cause.id == "finished" and not case.gpus_required:
        found = [finding for finding in found if finding.id not in EXPECTED_WITHOUT_GPU]
    if cause.id == "finished":
        found = [finding for finding in found if finding.id not in EXPECTED_WITHOUT_TERMINAL]
    one_of_each = list({finding.id: finding for finding in reversed(found)}.values())[::-1]
    return [pasteable(finding, case.plan) for finding in aftermath_last(one_of_each)]


def _exit_code(case: Case, cause: ExitCause, criteria: Sequence[Criterion]) -> int:
    if cause.id == "evidence-contradicted":
        return EXIT_GPU_CONTRACT if case.gpus_required else EXIT_ENGINE
    if cause.id in ("gpu-contract", "gpu-not-used"):
        return EXIT_GPU_CONTRACT
    if cause.id in ("engine-error", "agent-lost", "unknown"):
        return EXIT_ENGINE
    if cause.id == "evidence-lost":
        failed = cause.target_exit_code if case.evidence.exited else case.state and case.state.exit_code
        return EXIT_TARGET_FAILED if failed else EXIT_ENGINE
    if cause.id == "stopped" and (case.evidence.exited is None or interrupted_by_user(case)):
        return EXIT_INTERRUPTED
    if cause.id == "stopped" and ended_unfinished(case) and not stopped_by_user(case):
        return EXIT_TARGET_FAILED
    if cause.id == "pruned":
        return EXIT_DONE
    if cause.id == "timeout" or (cause.id != "running" and cause.target_exit_code != 0):
        return EXIT_TARGET_FAILED
    failed_ids = {criterion.id for criterion in criteria if criterion.verdict == "fail"}
    if cause.id == "finished" and failed_ids & set(GPU_CONTRACT):
        return EXIT_GPU_CONTRACT
    if case.plan.job.strict and failed_ids:
        return EXIT_CRITERIA
    return EXIT_DONE


def _warnings(case: Case, cause: ExitCause) -> tuple[str, ...]:
    """Sentences no reader may miss, the loudest first."""
    evidence, warnings = case.evidence, []
    if case.plan.agent.gpu_mode == "auto-cpu":
        warnings.append("This ran on the CPU: --gpus auto found no usable GPU; --gpus all would have failed instead")
    warnings += [warning for warning in case.plan.warnings if warning not in warnings]
    kills = evidence.exited.number("oom_kills") if evidence.exited else None
    if kills and kills > 0 and evidence.exited and evidence.exited.number("exit_code") == 0:
        warnings.append(f"The kernel's OOM killer ended {count(int(kills), 'process')} of the run, which continued")
    warnings += tell_outside(case)
    if missing := missing_lines(evidence):
        warnings.append(
            f"{count(missing, 'line')} of the agent's evidence never arrived: what they would prove is unproven"
        )
    if lost := lost_output_lines(case):
        warnings.append(f"{count(lost, 'line')} of output are in no log: the cluster cut them before they were read")
    if why := alterable(case):
        warnings.append(f"Evidence could be altered by the target: {why}")
    if unreadable := len(evidence.all(ReportUnreadable)):
        lines = count(unreadable, "line")
        warnings.append(
            f"{lines} that the script wrote to $SEATRIAL_EVENTS were skipped: not JSON objects, or too long"
        )
    if evidence.skipped_lines:
        lines = count(evidence.skipped_lines, "line")
        warnings.append(f"{lines} of events.jsonl could not be read: truncated or edited by hand; the rest is judged")
    if case.plan.job.serve is not None and cause.id not in ("running", "stopped", "finished", "gpu-contract"):
        warnings.append(f"The server is down. Start it again: seatrial serve {case.plan.job.serve.typed}")
    if evidence.hook_stopped:
        warnings.append(f"Steps were not measured to the end: the hook switched itself off ({evidence.hook_stopped})")
    if evidence.steps.dropped:
        warnings.append(f"{len(evidence.steps.dropped)} of the script's metrics were skipped: too many names")
    return (*warnings, *dict.fromkeys(evidence.jumps))


def _record(finding: Finding) -> FindingRecord:
    return FindingRecord.model_validate(finding.to_dict())
