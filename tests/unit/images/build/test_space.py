"""The check of disk space before a build."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.errors import DiskError
from seatrial.images.build.size import disk_choice, refuse_too_little, size_choice
from seatrial.job.plan import ImagePlan
from tables import cases, constant


def image(**stack: str) -> ImagePlan:
    return ImagePlan(tag="seatrial/x:1", build=True, stack=stack)


def test_too_little_space_is_refused_before_the_build() -> None:
    with pytest.raises(DiskError, match=r"takes about 6 GB to build; /var/lib/docker has only 6\.0 GB free") as raised:
        refuse_too_little(image(torch="2.13.0", build="cu130"), "/var/lib/docker", 6_000_000_000, "docker")
    assert raised.value.run == "docker system df; docker builder prune"


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


def test_an_estimate_that_reads_as_the_criterion_is_within_it() -> None:
    choice, warnings = size_choice(CUDA, "auto", LEFT_OUT, 3_460_000_000)
    assert warnings == () and choice.reason.startswith("within max_image_size, 3.5 GB")


@cases("change", "value", "reason")
def test_space_for_a_build(change: dict[str, Any], value: str, reason: str) -> None:
    shown = disk_choice(image().model_copy(update=change))
    assert shown.value == value and reason in shown.reason


@pytest.mark.parametrize(
    ("change", "left_out", "value"),
    [
        ({"stack": {"torch": "2.13.0", "build": "cpu"}}, {}, "about 1.1 GB"),
        ({"base": "example.com/base:1"}, LEFT_OUT, "about 3.3 GB above example.com/base:1"),
    ],
    ids=["nothing to slim", "an unknown base"],
)
def test_size_is_one_number(change: dict[str, Any], left_out: Any, value: str) -> None:
    choice, warnings = size_choice(CUDA.model_copy(update=change), "auto", left_out, None)
    assert (choice.value, warnings) == (value, ())
