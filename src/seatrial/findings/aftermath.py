"""Findings that follow from others: a process that ended without a reason, ranks that miss one that is gone."""

from typing import List, Sequence

from seatrial.findings.finding import Finding

#: Entries that say that a process ended, and not why.
ENDED = (
    "process-killed",
    "process-crashed",
    "loader-process-killed",
    "loader-process-ended",
    "ray-worker-died",
    "extension-not-built",
)

#: Entries that say that another rank is missed.
MISSED = (
    "nccl-timeout",
    "nccl-error",
    "nccl-no-connection",
    "peer-gone",
    "store-gone",
    "ranks-missing",
    "rank-failed",
    "jax-waits-for-ranks",
)


#: Entries of a build that only say that something did not work out, the most telling first: whatever else a build
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
    "conda-conflict": ("conda-wants-a-gpu", "conda-package-missing"),
    "git-login": ("mpi-node-not-reached",),
    "gpu-too-new-for-xla": ("triton-ptxas",),
    "k8s-image-pull": ("image-layer-cut",),
    "nccl-invalid-usage": ("ranks-share-a-gpu",),
    "registry-unreachable": ("base-image-missing",),
    "host-not-resolved": ("base-image-missing", "registry-unreachable"),
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
