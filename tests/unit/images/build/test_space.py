"""The check of disk space before a build."""

from __future__ import annotations

import pytest

from seatrial.errors import DiskError
from seatrial.images.build.size import disk_choice, needed_bytes, refuse_too_little, size_choice
from seatrial.job.plan import ImagePlan
from tables import constant


def image(**stack: str) -> ImagePlan:
    return ImagePlan(tag="seatrial/x:1", build=True, stack=stack)


def test_too_little_space_is_refused_before_the_build() -> None:
    with pytest.raises(DiskError, match=r"takes about 6 GB to build; /var/lib/docker has only 6\.0 GB free") as raised:
        refuse_too_little(image(torch="2.13.0", build="cu130"), "/var/lib/docker", 6_000_000_000, "docker")
    assert raised.value.run == "docker system df; docker builder prune"


def test_enough_space_passes() -> None:
    refuse_too_little(image(torch="2.13.0", build="cpu"), "/x", 9_000_000_000, "docker")
    assert needed_bytes(image()) < needed_bytes(image(build="cpu")) < needed_bytes(image(build="cu126"))


def test_second_framework_needs_space_as_well() -> None:
    two = image(tensorflow="2.21.0", build="and-cuda").model_copy(update={"also": {"jax": "cuda13"}})
    shown = disk_choice(two)
    assert shown.value == "about 15 GB to build"
    assert "tensorflow with its CUDA libraries 6.5 GB, jax with its CUDA libraries 4.6 GB, above" in shown.reason


def test_unknown_size_is_marked_as_an_estimate() -> None:
    shown = disk_choice(image())
    assert shown.value == "about 0.5 GB to build"
    assert shown.reason.startswith("packages of unknown size, taken for 0.4 GB, above the base image")
    assert disk_choice(image().model_copy(update={"packages_bytes": 2_100_000_000})).value == "about 3 GB to build"


CUDA = image(torch="2.13.0", build="cu130").model_copy(update={"base": "python:3.11-slim-bookworm"})
LEFT_OUT = constant(__file__, "LEFT_OUT")


def test_size_is_shown_for_each_level_and_against_the_criterion() -> None:
    choice, warnings = size_choice(CUDA, "auto", LEFT_OUT, 4_000_000_000)
    assert (choice.what, choice.value, warnings) == ("image size", "about 3.5 GB", ())
    assert choice.reason == "within max_image_size, 4.0 GB; --slim none: 5.0 GB, files: 4.1 GB, unused: 2.4 GB"


def test_size_beyond_the_criterion_is_a_warning_with_the_level_that_holds() -> None:
    choice, [warning] = size_choice(CUDA, "none", LEFT_OUT, 4_000_000_000)
    assert choice.value == "about 5.0 GB"
    assert warning == "the image will be over max_image_size, 4.0 GB: about 5.0 GB; see --slim auto"
    _, [warning] = size_choice(CUDA, "auto", LEFT_OUT, 1_000_000_000)
    assert warning.endswith("see [criteria] max_image_size in seatrial.toml")
    assert size_choice(CUDA, "none", LEFT_OUT, None)[1] == ()


def test_size_without_anything_to_slim_is_one_number() -> None:
    choice, warnings = size_choice(
        CUDA.model_copy(update={"stack": {"torch": "2.13.0", "build": "cpu"}}), "auto", {}, 10**9 * 4
    )
    assert (choice.value, warnings) == ("about 1.1 GB", ())


def test_size_names_a_base_that_is_not_known() -> None:
    other = CUDA.model_copy(update={"base": "example.com/base:1"})
    assert size_choice(other, "auto", LEFT_OUT, None)[0].value == "about 3.3 GB above example.com/base:1"
