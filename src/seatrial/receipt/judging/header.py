"""Header: what ran, on what."""

from __future__ import annotations

from typing import Literal

from seatrial.events import AgentFinished, AgentStarted, GpuCheck, HostLaunched, HostPod
from seatrial.job.script import FRAMEWORKS
from seatrial.receipt.evidence.facts import Moment
from seatrial.receipt.evidence.fields import mapping, number, text, whole
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import Header, Image, ReceiptGpu


def make_header(case: Case, now: float) -> Header:
    """The header; what nobody recorded is None."""
    plan, evidence = case.plan, case.evidence
    check, agent = evidence.last(GpuCheck), evidence.first(AgentStarted)
    launched = evidence.first(HostLaunched)
    framework, framework_cuda = _framework(case)
    return Header(
        run_id=plan.run_id,
        name=plan.job.name,
        target=plan.target_line,
        git_commit=plan.git_commit,
        backend=plan.backend,
        host=_host(case, launched, agent),
        part=_part(case),
        device=_device(case),
        gpus=tuple(
            ReceiptGpu(
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                compute_capability=gpu.compute_capability,
            )
            for gpu in case.expected
        ),
        gpus_asked=plan.gpus_asked if case.gpus_required else 0,
        injection=plan.injection,
        image=_image(case, launched),
        driver=_text(check, "driver") or plan.driver_version,
        cuda=_cuda_version(check),
        framework=framework,
        framework_cuda=framework_cuda,
        python=_text(agent, "python"),
        agent=_text(agent, "agent_version"),
        earlier_starts=_earlier_starts(case),
        started_at=next((t for m in evidence.moments if (t := number(m.keys.get("t"))) is not None), None),
        judged_at=now,
    )


def _earlier_starts(case: Case) -> tuple[int | None, ...]:
    """Of one container: a Compose file may tell its engine to start it again. Pods are told in the timeline."""
    if not case.plan.on_this_host or case.plan.agent.nodes > 1:
        return ()
    ends: list[int | None] = []
    for moment in case.evidence.moments:
        kind = moment.keys.get("type")
        if kind == AgentStarted.type:
            ends.append(None)
        elif kind == AgentFinished.type and ends:
            ends[-1] = whole(moment.keys.get("exit_code"))
    return tuple(ends[:-1])


def _host(case: Case, launched: Moment | None, agent: Moment | None) -> str | None:
    """The machine; on a cluster the nodes that ran the pods, in the order of their ranks."""
    if not case.plan.on_this_host:
        pods = {pod.number("node"): pod.text("host") for pod in case.evidence.all(HostPod)}
        hosts = [host for _, host in sorted(pods.items(), key=lambda item: item[0] or 0) if host]
        return ", ".join(dict.fromkeys(hosts)) or None
    return _text(launched, "host") or (_text(agent, "hostname") if case.plan.on_the_host else None)


def _part(case: Case) -> str | None:
    """Each of several hosts writes a receipt of its own; on a cluster there is one for all."""
    agent = case.plan.agent
    if agent.node_rank is None:
        return None
    hosts = case.plan.job.hosts
    named = ", ".join(hosts) if case.plan.job.with_names else str(len(hosts))
    return f"node {agent.node_rank} of {named}; together: {agent.rendezvous_id}"


def _device(case: Case) -> Literal["gpu", "cpu", "cpu-fallback"]:
    if case.gpus_required:
        return "gpu"
    return "cpu-fallback" if case.plan.agent.gpu_mode == "auto-cpu" else "cpu"


def _image(case: Case, launched: Moment | None) -> Image | None:
    if case.plan.image is None:
        return None
    digest = _text(launched, "image_digest")
    if digest is None and case.image is not None:
        digest = case.image.digest or case.image.id
    if digest is None and (pod := case.evidence.last(HostPod)) is not None:
        digest = _text(pod, "image")
    return Image(tag=case.plan.image.tag, digest=digest, size_bytes=case.image_bytes)


def _framework(case: Case) -> tuple[str | None, str | None]:
    """``("torch 2.13.0", "13.0")`` from its kernel, else what the agent found at the start, or the image has."""
    for kernel in (kernel for kernels in case.evidence.kernels.values() for kernel in kernels):
        found = mapping(kernel.keys.get("torch")) or mapping(kernel.keys.get("framework"))
        if version := text(found.get("version")):
            return f"{text(found.get('name')) or 'torch'} {version}", text(found.get("cuda"))
    started = case.evidence.target_started
    found = mapping(started.keys.get("framework")) if started else {}
    words = [word for key in ("name", "version") if (word := text(found.get(key)))]
    stack = case.plan.image.stack if case.plan.image else {}
    built = [f"{name} {stack[name]}" for name in FRAMEWORKS if name in stack]
    return " ".join(words) or next(iter(built), None), None


def _cuda_version(check: Moment | None) -> str | None:
    """cuDriverGetVersion's 13000 as ``13.0``; text as it is."""
    if check is None:
        return None
    value = check.number("cuda_driver")
    if value is None or value < 1000:
        return check.text("cuda_driver") or (None if value is None else f"{value:g}")
    return f"{int(value) // 1000}.{int(value) % 1000 // 10}"


def _text(moment: Moment | None, key: str) -> str | None:
    return moment.text(key) if moment else None
