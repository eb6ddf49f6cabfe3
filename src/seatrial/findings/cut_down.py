"""An image that was cut down to some GPUs' device code (image.slim = 'arch'), on others."""

from typing import Any, Dict, Optional, Sequence

from seatrial.findings.catalogue import by_id
from seatrial.findings.device_code import runs_on
from seatrial.findings.finding import Finding

#: Environment variable of such an image: the compute capabilities that it keeps code for, ``8.0 9.0``.
ARCHITECTURES = "SEATRIAL_ARCHITECTURES"


def covers(kept: Sequence[str], capability: str) -> bool:
    """Whether machine code that was kept for these compute capabilities runs on another."""
    return any(runs_on("sm_" + cc.replace(".", ""), capability) for cc in kept)


def cut_down(kept: str, gpus: Sequence[Dict[str, Any]]) -> Optional[Finding]:
    """The finding for the first GPU that the image has no code for, or None.

    Args:
        kept: value of ARCHITECTURES; "" for an image that has everything.
        gpus: ``uuid``, ``name`` and ``compute_capability`` of the plan's GPUs, as CUDA shows them.
    """
    for gpu in gpus if kept else ():
        capability = gpu.get("compute_capability")
        if capability and not covers(kept.split(), capability):
            name = gpu.get("name") or gpu["uuid"]
            message = "The image has device code for compute capability %s only, and %s is %s"
            return by_id("image-cut-down").finding(
                ["%s=%s" % (ARCHITECTURES, kept), "%s has compute capability %s" % (gpu["uuid"], capability)],
                message=message % (", ".join(kept.split()), name, capability),
            )
    return None
