"""Finding: one thing that is wrong, why, and the command that fixes it. Shared by agent, receipts and doctor."""

from typing import Any, Dict, List, Optional

from seatrial.events import Found

CAUSE = "cause"
FIX = "fix"


def in_one_line(message: str, cause: Optional[str], fix: Optional[str]) -> str:
    """``GPU missing; cause: …; fix: …``, for logs."""
    labelled = [(CAUSE, cause), (FIX, fix)]
    return "; ".join([message] + ["%s: %s" % (label, words) for label, words in labelled if words])


#: Engines read /etc/cdi too, but the toolkit's own service (nvidia-cdi-refresh) writes here, and two specs of one kind
#: disagree after the next driver update.
#: Source: docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
GENERATE_CDI = "sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"

#: On a node of a cluster, whose kubelet starts pods through containerd or CRI-O.
REGISTER_ON_NODE = (
    "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default"
    " && sudo systemctl restart containerd   # on the node; --runtime=crio for CRI-O"
)

REGISTER_RUNTIME = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"

INSTALL_DOCKER = "curl -fsSL https://get.docker.com | sudo sh"

#: Loads nvidia_uvm and makes the device nodes of the driver.
CREATE_NODES = "sudo nvidia-modprobe -u -c=0"

BUILD_DRIVER_MODULE = "sudo apt install linux-headers-$(uname -r) && sudo dkms autoinstall && sudo modprobe nvidia"

#: Ranges of user and group IDs that rootless Podman maps a container's users to.
#: Source: github.com/containers/podman/blob/main/troubleshooting.md
ADD_SUBIDS = 'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "$USER" && podman system migrate'


SEVERITIES = ("error", "warning", "info")


class Finding:
    """One thing that is wrong.

    Attributes:
        id: stable kebab-case name of the catalogue entry, e.g. ``uvm-node-missing``.
        severity: ``error`` (the contract is broken), ``warning`` or ``info``.
        message: what was seen, in one sentence.
        cause: the likely cause, in one sentence.
        fix: the command (or change) that fixes it, as typed.
        evidence: the lines it rests on: what was read, and where.
    """

    __slots__ = ("cause", "evidence", "fix", "id", "message", "severity")

    def __init__(
        self,
        id: str,
        severity: str,
        message: str,
        cause: Optional[str] = None,
        fix: Optional[str] = None,
        evidence: Optional[List[str]] = None,
    ) -> None:
        if severity not in SEVERITIES:
            raise ValueError("severity must be one of %s, not %r" % (", ".join(SEVERITIES), severity))
        self.id = id
        self.severity = severity
        self.message = message
        self.cause = cause
        self.fix = fix
        self.evidence = list(evidence or [])

    def to_dict(self) -> Dict[str, Any]:
        """The finding as it is written to receipt.json."""
        return {name: getattr(self, name) for name in ("id", "severity", "message", "cause", "fix", "evidence")}

    def event(self) -> Found:
        """The finding as it is written to events.jsonl."""
        return Found(**self.to_dict())

    def __repr__(self) -> str:
        return "Finding(%r, %r, %r)" % (self.id, self.severity, self.message)
