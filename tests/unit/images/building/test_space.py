"""Whether there is room for an image before it is built."""

from __future__ import annotations

import pytest

from seatrial.errors import DiskError
from seatrial.images.building.space import disk_choice, needed_bytes, refuse_too_little
from seatrial.job.plan import ImagePlan


def image(**stack: str) -> ImagePlan:
    return ImagePlan(tag="seatrial/x:1", build=True, stack=stack)


def test_too_little_room_is_said_before_anything_is_built() -> None:
    with pytest.raises(DiskError, match=r"takes about 7 GB to build; /var/lib/docker has only 6\.0 GB free") as raised:
        refuse_too_little(image(torch="2.13.0", build="cu130"), "/var/lib/docker", 6_000_000_000, "docker")
    assert raised.value.run == "docker system df; docker builder prune"


def test_enough_room_is_enough() -> None:
    refuse_too_little(image(torch="2.13.0", build="cpu"), "/x", 9_000_000_000, "docker")
    assert needed_bytes(image()) < needed_bytes(image(build="cpu")) < needed_bytes(image(build="cu126"))


def test_a_second_framework_takes_room_as_well() -> None:
    two = image(tensorflow="2.21.0", build="and-cuda").model_copy(update={"also": {"jax": "cuda13"}})
    told = disk_choice(two)
    assert told.value == "about 13 GB to build"
    assert "tensorflow with its CUDA libraries 5.0 GB, jax with its CUDA libraries 5.0 GB, above" in told.reason


def test_what_is_not_known_is_told_as_taken_for() -> None:
    told = disk_choice(image())
    assert told.value == "about 0.5 GB to build"
    assert told.reason.startswith("packages of unknown size, taken for 0.4 GB, above the base image")
    assert disk_choice(image().model_copy(update={"packages_bytes": 2_100_000_000})).value == "about 3 GB to build"
