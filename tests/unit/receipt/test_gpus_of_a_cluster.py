"""GPUs that a cluster's scheduler picks: how many were asked for is known also where no pod came to name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster_plans import DDP, a_cluster_plan
from seatrial.job.plan import Plan
from seatrial.receipt.judge import judge
from seatrial.receipt.model import Receipt
from seatrial.receipt.sections.what_ran import device_in_words
from seatrial.runs.ending import with_discovered_gpus
from seatrial.runs.listing import line_of
from seatrial.runs.store import RunStore
from seatrial.system.host import Host

from .conftest import rows_of


def _receipt(plan: Plan, folder: Path, evidence: list[dict[str, Any]]) -> Receipt:
    plan = with_discovered_gpus(plan, evidence)
    return judge(plan, evidence, skipped_lines=0, state=None, run_dir=folder, now=100.0, image=None)


def _check(node: int, *uuids: str) -> dict[str, Any]:
    visible = [{"index": i, "uuid": uuid, "name": "NVIDIA H200"} for i, uuid in enumerate(uuids)]
    return {"t": 1.0 + node, "type": "gpu.check", "source": "agent", "node": node, "ok": True, "visible": visible}


def _visible(receipt: Receipt) -> tuple[str, str | None, str]:
    found = next(one for one in receipt.criteria if one.id == "gpus-visible")
    return found.verdict, found.expected, found.evidence


def test_a_run_that_never_started_asked_for_its_gpus(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, gpus="8")
    receipt = _receipt(plan, tmp_path, [])
    assert receipt.header.gpus_asked == 8
    assert _visible(receipt) == ("fail", "8 GPUs", "the check in the container never reported")
    assert device_in_words(receipt.header) == "8 GPUs requested, none reported"
    assert rows_of(receipt, "What ran")["GPUs"] == "8 GPUs requested, none reported"


def test_gpus_of_all_pods_are_counted(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, gpus="2", nodes="2", script=DDP)
    both = [_check(0, "GPU-a", "GPU-b"), _check(1, "GPU-c", "GPU-d")]
    receipt = _receipt(plan, tmp_path, both)
    assert _visible(receipt)[:2] == ("pass", "4 GPUs") and device_in_words(receipt.header) == "4 × NVIDIA H200"
    receipt = _receipt(plan, tmp_path, both[:1])
    assert _visible(receipt) == ("fail", "4 GPUs", "the check of 1 pod never reported")
    assert device_in_words(receipt.header) == "2 × NVIDIA H200 (4 requested)"


def test_an_elastic_run_may_do_with_fewer_pods(tmp_path: Path) -> None:
    elastic = {"min_nodes": 1, "models": "pvc:models"}
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP, kubernetes=elastic)
    assert _visible(_receipt(plan, tmp_path, [_check(0, "GPU-a")]))[0] == "pass"


def test_pods_that_share_one_gpu_have_all_reported(tmp_path: Path) -> None:
    """Time slicing: one UUID in two pods."""
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP)
    assert _visible(_receipt(plan, tmp_path, [_check(0, "GPU-a"), _check(1, "GPU-a")]))[0] == "pass"


def test_a_cpu_run_asks_for_none(tmp_path: Path) -> None:
    receipt = _receipt(a_cluster_plan(tmp_path, gpus="none"), tmp_path, [])
    assert receipt.header.gpus_asked == 0 and device_in_words(receipt.header) == "CPU"


def test_a_listing_counts_them_while_it_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path, Host({"SEATRIAL_STATE": str(tmp_path / "state")}))
    plan = a_cluster_plan(tmp_path, gpus="2", nodes="2", script=DDP)
    run = store.create(plan.run_id, None)
    (run.folder / "plan.json").write_text(plan.model_dump_json())
    assert [line.gpus for line in [line_of(run, Host({})) for run in store.all()]] == [4]


def test_where_names_the_nodes(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP, with_names=True)
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
    receipt = _receipt(plan, tmp_path, pods)
    assert receipt.header.host == "gpu-c, gpu-b", "a pod that came again counts where it is now"
    assert rows_of(receipt, "What ran")["where"] == "k8s on gpu-c, gpu-b"
    unnamed = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP)
    assert _receipt(unnamed, tmp_path, pods).header.host is None


def test_one_pod_whose_check_failed_is_enough(tmp_path: Path) -> None:
    plan = a_cluster_plan(tmp_path, gpus="1", nodes="2", script=DDP)
    bad = {**_check(0, "GPU-a"), "ok": False, "error": "CUDA error 802"}
    assert _visible(_receipt(plan, tmp_path, [bad, _check(1, "GPU-b")])) == ("fail", "2 GPUs", "CUDA error 802")
