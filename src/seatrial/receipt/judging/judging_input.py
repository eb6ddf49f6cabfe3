"""Case: everything a receipt is judged on, read once and passed around."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.backends.base import ImageFacts, State
from seatrial.events import HostLaunched
from seatrial.findings.finding import Finding
from seatrial.job.plan import CONTAINER_MODELS, Gpu, Plan
from seatrial.receipt.evidence.facts import Evidence
from seatrial.receipt.evidence.output import Output
from seatrial.receipt.model import Measurements


@dataclass(frozen=True)
class Case:
    """Attributes:

    state: what the engine says of the run, None when it was not asked or does not answer.
    engine_findings: known failures in the engine's error.
    image: what the engine says of the image, None when it was not asked, or on the local backend.
    contradictions: sentences that say where the evidence cannot be what happened.
    """

    plan: Plan
    evidence: Evidence
    output: Output
    measurements: Measurements
    state: State | None
    engine_findings: tuple[Finding, ...]
    run_dir: Path
    image: ImageFacts | None
    contradictions: tuple[str, ...] = ()

    @property
    def gpus_required(self) -> bool:
        return self.plan.agent.gpu_mode == "required"

    @property
    def expected(self) -> tuple[Gpu, ...]:
        """The GPUs that were asked for, in CUDA order; () on a CPU run."""
        return self.plan.agent.gpus if self.gpus_required else ()

    @property
    def models_folder(self) -> Path | None:
        """The host's folder behind /models, or None."""
        if self.plan.job.models is not None:
            return self.plan.job.models.source
        return self.host_folder(CONTAINER_MODELS)

    def host_folder(self, target: str) -> Path | None:
        """The host's folder that is mounted right at a path of the container, or None."""
        mounts = self.plan.container.mounts if self.plan.container else ()
        return next((mount.source for mount in mounts if mount.target == target), None)

    @property
    def promises_a_model(self) -> bool:
        """The job names a folder for models; one that was mounted because the script may write there is none."""
        job = self.plan.job
        return job.models is not None or any(mount.target == CONTAINER_MODELS for mount in job.mounts)

    @property
    def image_bytes(self) -> int | None:
        """Bytes of the image's files, as they were counted before the run; None if they were not."""
        launched = self.evidence.first(HostLaunched)
        size = launched.number("image_bytes") if launched else None
        return int(size) if size else None
