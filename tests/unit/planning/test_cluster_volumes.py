"""What is said of a cluster's volumes before a run."""

import pytest

from seatrial.job.cluster import Volume
from seatrial.planning.pod_contents import volume_warnings

FOLDER = Volume(kind="hostpath", value="/data")
CLAIM = Volume(kind="pvc", value="models")


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        (1, "a folder on whichever node runs the pod"),
        (2, "each of the cluster's 2 nodes has a folder of its own"),
        (None, "each node has a folder of its own"),
    ],
)
def test_a_folder_of_the_nodes_is_another_on_each(machines: int | None, says: str) -> None:
    [warning] = volume_warnings(CLAIM, FOLDER, machines)
    assert warning.startswith("hostpath:/data: ") and says in warning
    assert ("pvc:NAME" in warning) == (machines != 1)


def test_a_claim_is_shared() -> None:
    assert volume_warnings(CLAIM, CLAIM, 2) == ()
