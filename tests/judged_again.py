"""A run's evidence, judged again: of a run on a GPU that was recorded, or of one without as if there had been one."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.backends.base import State
from seatrial.job.plan import Gpu, Plan
from seatrial.receipt.judge import judge

#: Lies idle next to a script that never comes to it.
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

#: Of a GPU's sample: what no rule looks at.
_LEFT_OUT = frozenset({"energy_j", "memory_used_bytes", "fan_pct", "ecc_uncorrected", "mem_clock_mhz", "pcie_replay"})


def judged_again(files: Mapping[str, bytes], project: Path) -> dict[str, Any]:
    """The receipt of plan.json, events.jsonl and logs. ``project`` has the script as it was."""
    return _receipt(json.loads(files["plan.json"]), _events(files), files, project)


def as_if_on_a_gpu(files: Mapping[str, bytes], project: Path) -> dict[str, Any]:
    """The same of a run that had no GPU, rewritten as if it had one that the script never came to."""
    plan, events = json.loads(files["plan.json"]), _events(files)
    plan["agent"]["gpu_mode"] = "required"
    plan["agent"]["gpus"] = [json.loads(H200.model_dump_json())]
    for event in events:
        if event.get("type") == "sample":
            event["gpus"] = [{"uuid": H200.uuid, **_IDLE}]
        elif event.get("type") == "agent.finished":
            event["contexts"] = []
    return _receipt(plan, events, files, project)


def write_packed(path: Path, runs: Mapping[str, Mapping[str, bytes]]) -> None:
    """Runs in one small file, a line each, without the machine's names and without what no judgement rests on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for name, files in sorted(runs.items()):
            file.write((json.dumps(_small(name, files), separators=(",", ":")) + "\n").encode())


def read_packed(path: Path) -> dict[str, dict[str, bytes]]:
    """Name of a script → its files, as ``judged_again`` takes them."""
    runs = {}
    with gzip.open(path, "rt") as file:
        for line in file:
            run = json.loads(line)
            events = "\n".join(json.dumps(event) for event in run["events"]).encode()
            logs = {f"{log}.log": run[log].encode() for log in ("stdout", "stderr")}
            runs[run["name"]] = {"plan.json": json.dumps(run["plan"]).encode(), "events.jsonl": events, **logs}
    return runs


def _small(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    plan = json.loads(files["plan.json"])
    events = _events(files)
    host = next((event["hostname"] for event in events if event.get("hostname")), "host")
    run_id = plan["run_id"]
    texts = {plan["job"]["project"]: "/project", plan.get("python") or "python3": "python3", host: "host",
             plan["agent"].get("evidence_dir") or "/evidence": "/evidence"}  # fmt: skip
    uuids = sorted({gpu["uuid"] for gpu in plan["agent"]["gpus"]})
    texts |= {uuid: f"GPU-{number:08x}-0000-4000-8000-000000000000" for number, uuid in enumerate(uuids, 1)}
    kept = [{key: value for key, value in event.items() if key != "_chain"} for event in events]
    logs = {f"{log}": files.get(f"{log}.log", b"").decode(errors="replace")[-3000:] for log in ("stderr", "stdout")}
    plan["choices"] = []
    text = json.dumps({"name": name, "plan": plan, "events": kept, **logs})
    for old, new in sorted(texts.items(), key=lambda item: -len(item[0])):
        text = text.replace(json.dumps(old)[1:-1], new)
    text = re.sub(r"/[\w./-]*/(site-packages|python3\.\d+)/", r"/usr/lib/\1/", text).replace(
        run_id, "20261122-000000-aaaa"
    )
    made: dict[str, Any] = json.loads(text)
    for event in made["events"]:
        for gpu in event.get("gpus") or () if event.get("type") == "sample" else ():
            for key in [key for key, value in gpu.items() if value is None or key in _LEFT_OUT]:
                del gpu[key]
    return made


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
        Plan.model_validate_json(json.dumps(plan), strict=False),
        events,
        skipped_lines=0,
        state=State("exited", code),
        run_dir=logs,
        now=max((event.get("t") or 0 for event in events), default=0) + 1,
        image=None,
    )
    found: dict[str, Any] = json.loads(receipt.model_dump_json())
    return found
