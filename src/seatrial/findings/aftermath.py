"""Findings that follow from others: a process that ended without a reason, ranks that miss one that is gone."""

from typing import List, Sequence

from seatrial.findings.finding import Finding

#: Entries of a process that ended, without the reason.
ENDED = (
    "process-killed",
    "process-crashed",
    "loader-process-killed",
    "loader-process-ended",
    "ray-worker-died",
    "extension-not-built",
)

#: Entries of a missing rank.
MISSED = (
    "nccl-timeout",
    "nccl-error",
    "nccl-system-error",
    "nccl-no-connection",
    "peer-gone",
    "store-gone",
    "ranks-missing",
    "rank-failed",
    "jax-waits-for-ranks",
)


#: Entries of a build of a failure without its reason, the most specific first: all else that a build
#: shows is their cause.
OF_A_BUILD = (
    "build-step-killed",
    "package-metadata-failed",
    "package-does-not-compile",
    "package-missing",
    "debian-package-missing",
    "base-image-missing",
)

#: Entry → entries that it follows from.
FOLLOWS = {
    "adapter-init-failed": ("gpu-lost",),
    "base-image-missing": ("rootless-storage",),
    "cuda-error": ("cudnn-not-started", "device-side-assert", "illegal-memory-access"),
    "cudnn-not-found": ("cudnn-not-started",),
    "daemon-json-invalid": ("daemon-json-conflict",),
    "jax-cuda-failed": ("cudnn-versions", "jax-cuda-too-old", "jax-parts-differ"),
    "jax-plugin-broken": ("cudnn-versions", "jax-cuda-too-old"),
    "k8s-init-crashes": ("k8s-container-ends",),
    "package-does-not-compile": ("extension-not-built", "cuda-host-compiler", "cuda-toolkit-too-old"),
    "package-metadata-failed": ("build-module-missing", "cuda-toolkit-too-old"),
    "runtime-not-there": ("runtime-unknown",),
    "conda-conflict": ("conda-wants-a-gpu", "conda-package-missing"),
    "git-login": ("mpi-node-not-reached",),
    "gpu-too-new-for-xla": ("triton-ptxas",),
    "k8s-image-pull": ("image-layer-cut",),
    "network-pair-failed": ("network-bridge-missing",),
    "nccl-error": ("nccl-system-error", "ranks-share-a-gpu", "driver-too-old"),
    "nccl-shared-memory": ("shared-memory-not-writable",),
    "nccl-system-error": ("nccl-shared-memory", "shared-memory-not-writable", "nccl-no-interface", "locked-memory"),
    "nccl-invalid-usage": ("ranks-share-a-gpu",),
    "registry-name-not-resolved": ("base-image-missing",),
    "registry-unreachable": ("base-image-missing", "registry-name-not-resolved"),
    "host-not-resolved": ("base-image-missing", "registry-unreachable"),
    "tensorflow-without-cuda": ("tensorflow-no-driver-library",),
    "weights-only": ("lfs-pointer", "file-damaged"),
}


def _without_what_follows(findings: Sequence[Finding]) -> List[Finding]:
    ids = {finding.id for finding in findings}
    return [finding for finding in findings if not ids.intersection(FOLLOWS.get(finding.id, ()))]


def without_aftermath(findings: Sequence[Finding]) -> List[Finding]:
    """Without what follows from another of them."""
    found = _without_what_follows(findings)
    for consequences in (MISSED, (*ENDED, *MISSED)):
        if any(finding.severity == "error" and finding.id not in consequences for finding in found):
            found = [finding for finding in found if finding.id not in consequences]
    return found


def aftermath_last(findings: Sequence[Finding]) -> List[Finding]:
    """In their order, but what others may be the cause of behind them; what follows from another is left out."""
    return sorted(
        _without_what_follows(findings), key=lambda finding: (finding.id in ENDED) + 2 * (finding.id in MISSED)
    )
