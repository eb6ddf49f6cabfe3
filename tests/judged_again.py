"""A run's evidence, judged again: of a run on a GPU that was recorded, or of one without as if there had been one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.backends.base import State
from seatrial.job.plan import Gpu, Plan
from seatrial.receipt.judging.judge import judge

#: Lies idle beside a script that never comes to it.
H200 = Gpu(
    index=0,
    uuid="GPU-de421f49-0f0c-4a5b-9c8d-1e2f3a4b5c6d",
    name="NVIDIA H200",
    memory_bytes=150_754_820_096,
    compute_capability="9.0",
    minor=0,
)
_IDLE = {"utilization_pct": 0, "sm_activity_pct": 0.0, "tensor_activity_pct": 0.0, "dram_activity_pct": 0.0,
         "throttle_reasons": []}  # fmt: skip


def judged_again(files: Mapping[str, bytes], project: Path) -> dict[str, Any]:
    """The receipt of plan.json, events.jsonl and logs. ``project`` has the script as it was."""
    return _receipt(json.loads(files["plan.json"]), _events(files), files, project)


def as_if_on_a_gpu(files: Mapping[str, bytes], project: Path) -> dict[str, Any]:
    """The same of a run that had no GPU, told as it had gone with one that the script never came to."""
    plan, events = json.loads(files["plan.json"]), _events(files)
    plan["agent"]["gpu_mode"] = "required"
    plan["agent"]["gpus"] = [json.loads(H200.model_dump_json())]
    for event in events:
        if event.get("type") == "sample":
            event["gpus"] = [{"uuid": H200.uuid, **_IDLE}]
        elif event.get("type") == "agent.finished":
            event["contexts"] = []
    return _receipt(plan, events, files, project)


def _events(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files["events.jsonl"].splitlines() if line.strip()]


def _receipt(
    plan: dict[str, Any], events: list[dict[str, Any]], files: Mapping[str, bytes], project: Path
) -> dict[str, Any]:
    plan["job"]["project"] = str(project)
    logs = project / ".logs"
    logs.mkdir(exist_ok=True)
    for name in ("stdout.log", "stderr.log"):
        (logs / name).write_bytes(files.get(name, b""))
    code = next((event.get("exit_code") for event in reversed(events) if event.get("type") == "target.exited"), None)
    receipt = judge(
        Plan.model_validate_json(json.dumps(plan)),
        events,
        skipped_lines=0,
        state=State("exited", code),
        run_dir=logs,
        now=max((event.get("t") or 0 for event in events), default=0) + 1,
        image=None,
    )
    found: dict[str, Any] = json.loads(receipt.model_dump_json())
    return found
