"""The tables themselves: every row has a source that is named, and what can be checked here agrees."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from seatrial.stack.facts import cuda_images, cuda_of_driver, minimum_driver, table, wheels


@pytest.mark.parametrize("name", ["cuda", "torch", "tensorflow", "jax", "gpus", "nvidia_images"])
def test_every_row_names_its_source_and_confidence(name: str) -> None:
    data = table(name)
    rows = [row for value in data.values() if isinstance(value, list) for row in value if isinstance(row, dict)]
    assert rows
    for row in rows:
        assert row["source"] in data["sources"], row
        assert row["confidence"] in ("high", "medium", "low"), row


def test_drivers() -> None:
    assert minimum_driver("12.6") == "525.60.13"
    assert minimum_driver("13.0") == "580.65.06"
    assert minimum_driver("10.2") == "440.33"
    assert cuda_of_driver("535.129.03") == "12.2"
    assert cuda_of_driver("100.1") is None


def test_one_default_a_torch() -> None:
    for version in {wheel.version for wheel in wheels("torch")}:
        assert sum(wheel.default for wheel in wheels("torch") if wheel.version == version) == 1


def test_tags_of_nvidia_cuda() -> None:
    tags = {image.cuda: image.tag("cudnn-runtime") for image in cuda_images()}
    assert tags["11.8.0"] == "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"
    assert tags["12.3.2"] == "nvidia/cuda:12.3.2-cudnn9-runtime-ubuntu22.04"
    assert tags["12.6.3"] == "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04"


@pytest.mark.torch
def test_the_table_agrees_with_the_wheel_that_is_installed() -> None:
    """Live facts: Requires-Dist of an installed CUDA build. A CPU build pins none, and proves nothing."""
    try:
        installed = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        pytest.skip("torch is not installed")
    pins = [Requirement(line) for line in installed.requires or ()]
    cudnn = [pin for pin in pins if pin.name.startswith("nvidia-cudnn-cu")]
    if not cudnn:
        pytest.skip(f"torch {installed.version} is a build without CUDA")
    major = cudnn[0].name.removeprefix("nvidia-cudnn-cu")
    rows = [row for row in wheels("torch") if Version(row.version).public == Version(installed.version).public]
    assert any(row.cudnn in str(cudnn[0].specifier) for row in rows if row.cudnn and row.cuda.startswith(major))
