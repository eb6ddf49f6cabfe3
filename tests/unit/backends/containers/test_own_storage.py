"""Storage that prune may remove: by names, labels and marks as engines print them."""

from __future__ import annotations

import pytest

from seatrial.backends.containers import images as own_storage
from seatrial.backends.containers.images import OwnImage, unused_images
from seatrial.images.dockerfile.render import OURS
from tables import cases


def image(name: str, created: str, *, used: bool = False) -> OwnImage:
    return OwnImage(f"id of {name}", (name,), created, used)


IMAGES = [
    image("seatrial/net:1", "2026-11-20"),
    image("seatrial/net:2", "2026-11-21", used=True),
    image("seatrial/other:1", "2026-11-21"),
    image("seatrial/net:3", "2026-11-22"),
]


def test_a_project_keeps_its_newest_and_what_a_container_has() -> None:
    assert [each.names[0] for each in unused_images(IMAGES, "seatrial/net")] == ["seatrial/net:1"]
    assert unused_images(IMAGES, "seatrial/other") == []
    assert unused_images(IMAGES, "seatrial/ne") == []


@pytest.mark.parametrize(
    ("description", "ours"),
    [
        (f"mount / from exec /bin/sh -c export A=b &&     python3 /mnt/layer.py finish{OURS}", True),
        ("mount / from exec /bin/sh -c python3 -m venv /opt/venv", False),
        (f"mount / from exec /bin/sh -c echo '{OURS}' > notes", False),
        ("mount / from exec /bin/sh -c pip install seatrial", False),
        ("local source for context", False),
        ("fileop target", False),
        ("", False),
    ],
)
def test_a_step_of_ours_ends_with_our_mark(description: str, ours: bool) -> None:
    assert own_storage._is_ours(description) is ours


@cases("name", "ours")
def test_a_name_of_ours(name: str, ours: bool) -> None:
    assert own_storage._is_our_name(name) is ours
