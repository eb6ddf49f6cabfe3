"""Judging a run: plan, events, output and the engine's last word → Receipt.

Exit code of the command line, by the first rule that holds:

    3  the GPU contract was broken: before the start (exit cause ``gpu-contract``), because a requested GPU was never
       used by a target that finished (``gpu-not-used``, or a criterion of GPU_CONTRACT failed), or because the evidence
       contradicts itself
    5  the run never started, or the agent or its evidence was lost, so that the target's work is unknown
    1  the target failed, was killed, ran out of time or memory, or was ended from outside before it had finished
    4  a criterion failed and the job is strict
    0  otherwise; also for a run that still goes on

outcome.py makes the headline.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seatrial import errors
from seatrial.backends.base import ImageFacts, State
from seatrial.events import Chain, ReportUnreadable
from seatrial.findings.catalogue import AT_START, by_id, consequences_last
from seatrial.findings.finding import Finding
from seatrial.findings.match import match_text
from seatrial.job.plan import Plan
from seatrial.receipt.evidence import RunEvidence, gather
from seatrial.receipt.exit_cause import ended_unfinished, exit_cause, users_signals
from seatrial.receipt.logs import Output, read_log_end, read_output
from seatrial.receipt.model import HTML_NAME, JSON_NAME, MARKDOWN_NAME, SECTIONS, Receipt, without_names
from seatrial.receipt.outcome import DOUBTFUL
from seatrial.receipt.section import FindingRecord, JudgedCriteria
from seatrial.receipt.sections import trust
from seatrial.receipt.sections.criteria import GPU_CONTRACT
from seatrial.receipt.sections.findings import files_outside, pasteable, without_expected
from seatrial.receipt.sections.gpu_contract import not_used_finding
from seatrial.receipt.sections.measured import measure
from seatrial.receipt.sections.tune import with_result
from seatrial.receipt.values import count
from seatrial.system.records import Folder


# Nine parameters: the facts of a run come from as many places, and seven of them are named at the call.
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
    """Return the receipt of a run. Reads the run's logs and looks for the saved model; changes nothing.

    Args:
        events: of events.read, in the order of the file.
        skipped_lines: lines of that file that were no JSON object.
        state: the engine's word about the run, or None if it cannot be queried.
        now: Unix time in seconds.
        chain: of events.jsonl, followed to its end; None while the run goes on.
        output: the target's output; None: read it from the logs (12 s for a million lines).
    """
    evidence = gather(events, skipped_lines)
    expected = [gpu.uuid for gpu in plan.agent.gpus] if plan.agent.gpu_mode == "required" else []
    output = read_output(run_dir, plan.job.metrics) if output is None else output
    run = RunEvidence(
        plan=plan,
        evidence=evidence,
        output=output,
        measurements=measure(evidence, expected, plan.agent.gpu_memory_bytes, output.printed),
        state=state,
        engine_findings=tuple(match_text(state.error, AT_START)) if state and state.error else (),
        run_dir=run_dir,
        image=image,
        now=now,
        chain=chain,
    )
    run = replace(run, contradictions=tuple(trust.contradictions(run)))
    run = replace(run, cause=exit_cause(run))
    criteria = JudgedCriteria(criterion for section in SECTIONS for criterion in section.judge(run))
    findings = _findings(run)
    found = {key: value for section in SECTIONS for key, value in section.read(run).items()}
    cause = run.cause
    if doubts := [DOUBTFUL[finding.id] for finding in findings if finding.id in DOUBTFUL]:
        cause = cause.changed(words=f"{cause.words}, but {doubts[0]}")
    cause, code, warnings = with_result(cause, found["tune"]), _exit_code(run, criteria), _warnings(run)
    noted = tuple(FindingRecord.model_validate(finding.to_dict()) for finding in findings)
    receipt = Receipt(exit_cause=cause, exit_code=code, warnings=warnings, criteria=criteria, findings=noted, **found)
    if receipt.outcome.id == "failed":
        receipt = receipt.changed(ending=read_log_end(run_dir))
    return without_names(receipt, plan.job)


def _findings(run: RunEvidence) -> list[Finding]:
    """Return one finding of each ID: violations of the contract first, consequences of others last."""
    found = [by_id("evidence-contradicted").finding(run.contradictions)] if run.contradictions else []
    found += [finding for finding in (not_used_finding(run), trust.refused_finding(run)) if finding]
    found += [finding for section in SECTIONS for finding in section.findings(run)]
    found = without_expected(found, run)
    one_of_each = list({finding.id: finding for finding in reversed(found)}.values())[::-1]
    return [pasteable(finding, run.plan) for finding in consequences_last(one_of_each)]


def _exit_code(run: RunEvidence, criteria: JudgedCriteria) -> int:
    cause = run.cause
    if cause.id == "evidence-contradicted":
        return errors.EXIT_GPU_CONTRACT if run.gpus_required else errors.EXIT_ENGINE
    if cause.id in ("gpu-contract", "gpu-not-used"):
        return errors.EXIT_GPU_CONTRACT
    if cause.id in ("engine-error", "agent-lost", "unknown"):
        return errors.EXIT_ENGINE
    if cause.id == "evidence-lost":
        failed = cause.target_exit_code if run.evidence.exited else run.state and run.state.exit_code
        return errors.EXIT_TARGET_FAILED if failed else errors.EXIT_ENGINE
    if cause.id == "stopped" and (run.evidence.exited is None or signal.SIGINT in users_signals(run)):
        return errors.EXIT_INTERRUPTED
    if cause.id == "stopped" and ended_unfinished(run) and not users_signals(run):
        return errors.EXIT_TARGET_FAILED
    if cause.id == "pruned":
        return errors.EXIT_DONE
    if cause.id == "timeout" or (cause.id != "running" and cause.target_exit_code != 0):
        return errors.EXIT_TARGET_FAILED
    failed_ids = {criterion.id for criterion in criteria if criterion.verdict == "fail"}
    if cause.id == "finished" and failed_ids & {*GPU_CONTRACT, "trained-on-gpu"}:
        return errors.EXIT_GPU_CONTRACT
    if run.plan.job.strict and failed_ids:
        return errors.EXIT_CRITERIA
    return errors.EXIT_DONE


def _warnings(run: RunEvidence) -> tuple[str, ...]:
    """Return sentences that no reader may miss, the most important first."""
    evidence, serving = run.evidence, run.plan.job.serve
    kills = max(0, evidence.of_end("oom_kills") or 0) if evidence.of_end("exit_code") == 0 else 0
    lines, lost, bad = partial(count, noun="line"), trust.lost_output_lines(run), len(evidence.all(ReportUnreadable))
    missing, cut, dropped = evidence.missing_lines, evidence.skipped_lines, len(evidence.steps.dropped)
    down = serving is not None and run.cause.id not in ("running", "stopped", "finished", "gpu-contract")
    found: tuple[tuple[object, str], ...] = (
        (kills, f"The kernel's OOM killer ended {count(kills, 'process')} of the run, which continued"),
        *((True, sentence) for sentence in files_outside(run)),
        (missing, f"{lines(missing)} of the agent's evidence never arrived: what they would prove is unproven"),
        (lost, f"{lines(lost)} of output are in no log: the cluster cut them before they were read"),
        (why := trust.alterable(run), f"{trust.ALTERABLE}{why}"),
        (why := trust.unverified_mounts(run), f"Mounts were not verified: {why}"),
        (bad, f"{lines(bad)} that the script wrote to $SEATRIAL_EVENTS were skipped: not JSON objects, or too long"),
        (cut, f"{lines(cut)} of events.jsonl could not be read: truncated or edited by hand; the rest is judged"),
        (down, f"The server is down. Start it again: seatrial serve {serving and serving.typed}"),
        (why := evidence.hook_stopped, f"Steps were not measured to the end: the hook switched itself off ({why})"),
        (dropped, f"{dropped} of the script's metrics were skipped: too many names"),
    )
    shown = (sentence for holds, sentence in found if holds)
    return (*dict.fromkeys(run.plan.warnings), *shown, *dict.fromkeys(evidence.jumps))


def write_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write all three, each aside and then renamed: a reader sees a whole receipt, old or new. Raises DiskError."""
    from seatrial.receipt.render import markdown, pages  # a run that goes on does not need them

    texts = {
        MARKDOWN_NAME: markdown.render(receipt),
        HTML_NAME: pages.render(receipt),
        JSON_NAME: receipt.model_dump_json(indent=2) + "\n",  # last: a reader that waits for it finds the others
    }
    for name, text in texts.items():
        Folder(run_dir, mode=0o644).write(name, text)
