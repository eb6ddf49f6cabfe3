"""Failures to write: a disk that is full or read-only, on the host, in a build and in a container."""

from seatrial.findings.known import Known

DISK = (
    Known(
        id="read-only-root",
        title="A write outside the writable folders failed",
        symptoms=("Read-only file system", "OSError: [Errno 30]"),
        cause="The container's root is read-only; the project, /models, /tmp and the caches can be written",
        fix="seatrial run --writable …",
        sources=("https://docs.docker.com/reference/cli/docker/container/run/#read-only",),
    ),
    Known(
        id="disk-full",
        title="A disk is full",
        symptoms=("No space left on device", "Disk quota exceeded", "OSError: [Errno 28]", "OSError: [Errno 122]"),
        cause="The disk of the project, the models folder, the caches or the engine is full; or /tmp, which is memory",
        fix="df -h . && {engine} system df   # seatrial prune removes old runs and images",
        sources=("https://docs.docker.com/engine/manage-resources/pruning/",),
    ),
)
