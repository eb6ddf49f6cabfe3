"""Runs on a cluster: lost pods and cut logs, requests to end, GPUs that the scheduler picks, models on volumes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_plans import DDP, a_cluster_plan
from seatrial.backends.base import State
from seatrial.job.plan import Plan
from seatrial.receipt.evidence import RunEvidence, gather
from seatrial.receipt.judge import judge
from seatrial.receipt.model import Receipt
from seatrial.receipt.sections.criteria import judge_saved_model
from seatrial.receipt.sections.measured import measure
from seatrial.receipt.sections.what_ran import device_in_words
from seatrial.runs.ending import with_discovered_gpus

from .conftest import H200, Scenario, at, ending, prologue, rows_of, running

Lines = list[dict[str, Any]]
LAUNCHED = prologue()[:1]
WELL, FAILED = State("exited", 0), State("exited", 143)


def judged(folder: Path, events: Lines, state: State | None = WELL, restarts: int = 0, **keys: Any) -> Receipt:
    run = Scenario([*LAUNCHED, *events], backend="k8s", state=state, agent={"pod_restarts": restarts}, **keys)
    return run.judge(folder)


def ended(receipt: Receipt) -> tuple[str, int]:
    return receipt.exit_cause.id, receipt.exit_code


def later(lines: Lines, seconds: float) -> Lines:
    """The same of another pod, or of the next try."""
    moved = [{**line, "t": line["t"] + seconds} for line in lines]
    return [{**line, "events": later(line["events"], seconds)} if "events" in line else line for line in moved]


GPUS: dict[str, Any] = {"gpus": (H200,), "gpu_mode": "required"}


def a_pods_lines(*, summary: bool = True, gpus: Any = (H200,), code: int = 0, output: int = 0) -> Lines:
    whole = [*prologue(gpus)[1:], *running(32, gpus), *ending(36, code)[:1]]
    lines = [{**event, "_seq": seq} for seq, event in enumerate(whole, 1)]
    kinds = ("agent.started", "gpu.check", "gpu.kernel", "target.started", "gpu.context")
    if summary:
        repeated = [{**line, "source": "agent"} for line in lines if line["type"] in kinds]
        lines.append(at(36, "agent.summary", events=repeated, output_lines=[output, 0], _seq=len(lines) + 1))
    finished = {**ending(36, code)[1], "_seq": len(lines) + 1, "contexts": [gpu.uuid for gpu in gpus]}
    return [*lines, finished]


@pytest.mark.parametrize("left", [0, 50, 20, 3])
def test_log_whose_beginning_was_cut_is_judged_on_its_summary(tmp_path: Path, left: int) -> None:
    receipt = judged(tmp_path, a_pods_lines()[-left:], **GPUS)
    verdicts = {criterion.id: criterion.verdict for criterion in receipt.criteria}
    assert ended(receipt) == ("finished", 0) and verdicts["gpus-visible"] == verdicts["ran-on-gpu"] == "pass"
    assert (receipt.seal is not None and receipt.seal.missing > 0) == bool(left)
    assert any("never arrived" in warning for warning in receipt.warnings) == bool(left)


@pytest.mark.parametrize(("code", "expected"), [(0, ("evidence-lost", 5)), (7, ("evidence-lost", 1))])
def test_cut_log_without_a_summary_is_never_green(tmp_path: Path, code: int, expected: tuple[str, int]) -> None:
    lines = a_pods_lines(summary=False, gpus=(), code=code)[-20:]
    receipt = judged(tmp_path, lines, State("exited", code))
    assert ended(receipt) == expected and "never arrived" in receipt.exit_cause.words


@pytest.mark.parametrize(
    ("passed_on", "stdout", "lost"), [(30_000, "a line\n" * 4_000, 26_000), (3, "a\nb\nc\nno line end", 0)]
)
def test_lost_output_is_counted(tmp_path: Path, passed_on: int, stdout: str, lost: int) -> None:
    receipt = judged(tmp_path, a_pods_lines(output=passed_on), stdout=stdout, **GPUS)
    assert [warning[:14] for warning in receipt.warnings if "output" in warning] == (
        [f"{lost} lines of"] if lost else []
    )


@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        (State("exited", 3), ("gpu-contract", 3), "GPU contract"),
        (State("exited", 7), ("evidence-lost", 1), "exit code 7"),
        (State("exited", 143), ("evidence-lost", 1), "exit code 143"),
        (State("exited", 0), ("evidence-lost", 5), "exit code 0"),
        (State("exited", None), ("engine-error", 5), "could not start"),
        (State("gone"), ("engine-error", 5), "it was deleted there before its evidence was read"),
    ],
)
def test_deleted_pods_end_as_the_cluster_reports(
    tmp_path: Path, state: State, expected: tuple[str, int], words: str
) -> None:
    receipt = judged(tmp_path, [], state, **GPUS)
    assert ended(receipt) == expected and words in receipt.exit_cause.words


def kinds(lines: Lines) -> list[str]:
    return [str(moment.keys["type"]) for moment in gather(lines).moments]


def test_summary_of_a_second_try_repeats_nothing_twice() -> None:
    """One agent, so its numbers go on, and the second summary has the lines of the first, too."""
    first, second = a_pods_lines(), later(a_pods_lines(), 100)
    second = [{**line, "_seq": line["_seq"] + len(first)} for line in second[1:]]
    second[-2]["events"] = [*first[-2]["events"], *({**line} for line in second if line["type"] == "target.started")]
    assert len(kinds([*first, *second])) == len(first) + len(second)
    cut = kinds([*first[50:], *second])
    assert (cut.count("agent.started"), cut.count("target.started")) == (1, 2)


def test_summary_of_each_pod_is_in_front_of_its_own_lines() -> None:
    whole = kinds([*a_pods_lines()[-4:], *later(a_pods_lines(), 100)[-2:]])
    first, second = (place for place, kind in enumerate(whole) if kind == "agent.started")
    assert first == 0 and second > whole.index("agent.finished")


BY_USER = at(9.9, "signal", "host", signal=15, name="SIGTERM", origin="user", forwarded_to=[])


def pod(code: int | None, own: int, *, stopped: bool = True, signal: int | None = None) -> Lines:
    """An agent's life; the target ends with ``code``, the agent with ``own``."""
    stop = at(10, "signal", signal=15, name="SIGTERM", origin="engine", forwarded_to=[7])
    exited = {"exit_code": code, "signal": signal, "cause": "signal" if signal else "exited", "seconds": 8}
    end = [at(11, "target.exited", **exited, max_rss_bytes=1, oom_kills=0), at(11.1, "agent.finished", exit_code=own)]
    return prologue()[1:] + running(6) + [stop] * stopped + [{**event, "energy_j": {}} for event in end]


NEXT = later(prologue()[1:] + running(6), 30)
THREE = [*pod(0, 143), *later(pod(None, 143, signal=15), 30), *later(pod(5, 5, stopped=False), 60)]


@pytest.mark.parametrize(
    ("events", "state", "restarts", "expected"),
    [
        (pod(0, 143), FAILED, 0, ("stopped", 1)),  # evicted
        (pod(1, 143), FAILED, 0, ("stopped", 1)),
        (pod(None, 143, signal=15), FAILED, 0, ("stopped", 1)),
        ([*pod(0, 143), BY_USER], FAILED, 3, ("stopped", 0)),
        (pod(0, 0), WELL, 3, ("finished", 0)),  # it ended at that moment
        (pod(7, 7), State("exited", 7), 3, ("script-error", 1)),
        ([*pod(0, 143), *later(pod(0, 0, stopped=False), 30)], WELL, 3, ("finished", 0)),
        (THREE, State("exited", 5), 3, ("script-error", 1)),
        ([*pod(0, 143), *NEXT], State("running"), 3, ("running", 0)),
        ([*pod(0, 143), *NEXT], State("exited", 137), 3, ("agent-lost", 5)),
    ],
)
def test_request_to_end_a_pod_stops_the_run_unless_another_pod_goes_on(
    tmp_path: Path, events: Lines, state: State, restarts: int, expected: tuple[str, int]
) -> None:
    assert ended(judged(tmp_path, events, state, restarts)) == expected


@pytest.mark.parametrize(
    ("ends", "node", "code"),
    [([(10.0, 1, 7), (12.0, 0, 1)], 1, 7), ([(10.0, 1, 137), (20.0, 1, 0), (21.0, 0, 0)], 0, 0)],
)
def test_first_failed_node_ends_the_run_unless_it_came_back(
    ends: list[tuple[float, int, int]], node: int, code: int
) -> None:
    keys = ("t", "node", "exit_code")
    lines = [{**dict(zip(keys, end, strict=True)), "type": "target.exited", "source": "agent"} for end in ends]
    exited = gather(lines).exited
    assert exited is not None and (exited.number("node"), exited.number("exit_code")) == (node, code)


def test_energy_is_of_all_nodes() -> None:
    used = [(0, {"GPU-a": 5.0}), (1, {"GPU-b": 7.0})]
    finished = [{"t": 1.0, "type": "agent.finished", "source": "agent", "node": n, "energy_j": j} for n, j in used]
    assert measure(gather(finished), ["GPU-a", "GPU-b"]).energy_j == 12.0


def cluster_receipt(plan: Plan, folder: Path, evidence: Lines) -> Receipt:
    plan = with_discovered_gpus(plan, evidence)
    return judge(plan, evidence, skipped_lines=0, state=None, run_dir=folder, now=100.0, image=None)


def check(node: int, *uuids: str, **keys: Any) -> dict[str, Any]:
    visible = [{"index": i, "uuid": uuid, "name": "NVIDIA H200"} for i, uuid in enumerate(uuids)]
    event = {"t": 1.0 + node, "type": "gpu.check", "source": "agent", "node": node, "ok": True, "visible": visible}
    return {**event, **keys}


TWO: dict[str, Any] = {"gpus": "1", "nodes": "2", "script": DDP}
ELASTIC = {"min_nodes": 1, "models": "pvc:models"}
NEVER, ONE_POD = "the check in the container never reported", "the check of 1 pod never reported"
BAD = check(0, "GPU-a", ok=False, error="CUDA error 802")


@pytest.mark.parametrize(
    ("plan", "checks", "visible", "device"),
    [
        ({"gpus": "8"}, [], ("fail", "8 GPUs", NEVER), "8 GPUs requested, none reported"),
        ({**TWO, "gpus": "2"}, [check(0, "a", "b"), check(1, "c", "d")], ("pass", "4 GPUs", None), "4 × NVIDIA H200"),
        ({**TWO, "gpus": "2"}, [check(0, "a", "b")], ("fail", "4 GPUs", ONE_POD), "2 × NVIDIA H200 (4 requested)"),
        ({**TWO, "kubernetes": ELASTIC}, [check(0, "a")], ("pass", "2 GPUs", None), None),
        (TWO, [check(0, "a"), check(1, "a")], ("pass", "2 GPUs", None), None),  # time slicing: one UUID in two pods
        (TWO, [BAD, check(1, "b")], ("fail", "2 GPUs", "CUDA error 802"), None),
        ({"gpus": "none"}, [], ("not judged", None, None), "CPU"),
    ],
)  # fmt: skip
def test_gpus_of_all_pods_are_counted(tmp_path: Path, plan: Any, checks: Lines, visible: Any, device: Any) -> None:
    receipt = cluster_receipt(a_cluster_plan(tmp_path, **plan), tmp_path, checks)
    verdict, expected, evidence = visible
    found = receipt.criteria["gpus-visible"]
    assert (found.verdict, found.expected) == (verdict, expected) and evidence in (None, found.evidence)
    assert device in (None, device_in_words(receipt.header))


def test_where_names_the_nodes_as_they_are_now(tmp_path: Path) -> None:
    pods = [
        {
            "t": 1.0,
            "type": "host.pod",
            "source": "host",
            "name": f"run-{node}",
            "node": node,
            "host": host,
            "image": "x",
        }
        for node, host in ((1, "gpu-b"), (0, "gpu-a"), (0, "gpu-c"))
    ]
    receipt = cluster_receipt(a_cluster_plan(tmp_path, **TWO, with_names=True), tmp_path, pods)
    assert receipt.header.host == "gpu-c, gpu-b"
    assert rows_of(receipt, "What ran")["where"] == "k8s on gpu-c, gpu-b"
    assert cluster_receipt(a_cluster_plan(tmp_path, **TWO), tmp_path, pods).header.host is None


STARTED = [{"t": 1.0, "type": kind, "source": "agent"} for kind in ("agent.started", "target.started")]
FILES = [{"path": "digits.pth", "bytes": 90}, {"path": "digits.safetensors", "bytes": 80}]


@pytest.mark.parametrize(
    ("files", "models", "criteria", "verdict", "words"),
    [
        (FILES, "pvc:models", {}, "pass", "digits.pth, 90 B and 1 more file, on pvc:models, written by this run"),
        ([], "pvc:models", {}, "fail", "no matching file was written to pvc:models"),
        ([{"path": "a.pt", "bytes": 0}], "pvc:models", {}, "fail", "a.pt was written to pvc:models but is empty"),
        ([], None, {}, "not judged", "names no volume"),
        (FILES, None, {}, "pass", "deleted with it"),
        (None, "pvc:models", {}, "not judged", "no agent reported"),
        (FILES, "pvc:models", {"model": ["/models/*.safetensors"]}, "pass", "digits.safetensors"),
        (FILES, "pvc:models", {"model": ["other.pt"]}, "fail", "no matching file"),
    ],
)
def test_models_are_judged_by_the_agents_reports(
    tmp_path: Path, files: Any, models: str | None, criteria: dict[str, Any], verdict: str, words: str
) -> None:
    saved = [] if files is None else [{"t": 9.0, "type": "models.saved", "source": "agent", "files": files}]
    plan = a_cluster_plan(tmp_path, kubernetes={"models": models} if models else {}, criteria=criteria)
    run = SimpleNamespace(plan=plan, files_since=1.0, evidence=gather([*STARTED, *saved]))
    found = judge_saved_model(cast("RunEvidence", run))
    assert found.verdict == verdict and words in found.evidence


@pytest.mark.parametrize(
    ("codes", "earlier", "words"),
    [
        ((0,), (), None),
        ((5, None, 0), (5, None), "3: started again by the engine after exit code 5, a kill"),
        ((0, 7), (0,), "2: started again by the engine after exit code 0"),
        ((3,) * 30, (3,) * 29, f"30: started again by the engine after …, {', '.join(['exit code 3'] * 8)}"),
    ],
)
def test_container_that_its_engine_starts_again_lists_every_start(
    tmp_path: Path, codes: Any, earlier: Any, words: str | None
) -> None:
    events = list(LAUNCHED)
    for number, code in enumerate(codes):
        lines = [*prologue()[1:], *running(3), *([] if code is None else ending(4, code))]
        events += [{**line, "_seq": seq} for seq, line in enumerate(later(lines, 10.0 * number), 1)]
    receipt = Scenario(events, state=State("exited", codes[-1])).judge(tmp_path)
    assert receipt.header.earlier_starts == earlier and rows_of(receipt, "What ran").get("starts") == words
    assert receipt.exit_cause.target_exit_code == codes[-1]
