"""What a built image shows of itself, against what was resolved."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.images.prove import judge
from seatrial.images.treemap import treemap
from seatrial.job.plan import ImagePlan
from seatrial.stack.machine import parse_target

IMAGE = ImagePlan(tag="x:1", build=True, stack={"python": "3.11", "torch": "2.13.0", "build": "cu130"})
SHOWN: dict[str, Any] = {
    "python": "3.11",
    "imports": {"torch": 1.2},
    "errors": {},
    "versions": {"torch": "2.13.0+cu130"},
    "cuda": "13.0",
    "architectures": ["sm_80", "sm_90", "compute_90"],
    "training": "abc",
}


def test_an_image_as_resolved() -> None:
    proof = judge(SHOWN, IMAGE, parse_target("h100"))
    assert proof.wrong == ()
    assert proof.architectures == ("sm_80", "sm_90", "compute_90")


@pytest.mark.parametrize(
    ("change", "target", "sentence"),
    [
        ({"errors": {"cv2": "ImportError: libGL.so.1"}}, "h100", "`import cv2` fails: ImportError: libGL.so.1"),
        ({"versions": {"torch": "2.9.0"}}, "h100", "torch is 2.9.0, and 2.13.0 was resolved"),
        ({"cuda": None, "versions": {"torch": "2.13.0+cpu"}}, "h100", "torch 2.13.0+cpu is a CPU build"),
        ({"architectures": ["sm_80"]}, "h100", "torch has code for sm_80, and H100 is 9.0"),
        ({"architectures": ["sm_90a"]}, "v100", "torch has code for sm_90a, and V100 is 7.0"),
    ],
)
def test_what_does_not_hold_is_a_sentence(change: dict[str, Any], target: str, sentence: str) -> None:
    (wrong,) = judge({**SHOWN, **change}, IMAGE, parse_target(target)).wrong
    assert sentence in wrong


@pytest.mark.parametrize("target", ["l4", "a100", "b200"])  # same major; exact; PTX of an older one
def test_code_that_fits_is_enough(target: str) -> None:
    assert judge(SHOWN, IMAGE, parse_target(target)).wrong == ()


def test_a_treemap_has_an_area_for_each_byte() -> None:
    svg = treemap("an <image>", {"torch": 600_000_000, "nvidia/cudnn": 300_000_000, "six": 1000})
    assert "an &lt;image&gt;" in svg
    assert svg.count("<rect") == 4  # the ground, two packages, and what is too small to see
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
