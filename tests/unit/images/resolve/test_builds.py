"""Plans of packages without a wheel, by their sources on an index of this machine."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator

import pytest

from package_indexes import Index, serving
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve.answers import Lock, LockedPackage
from seatrial.images.resolve.wheel_files import with_undeclared
from seatrial.job.script import ScriptFacts

from .conftest import Planner

EXTENSION = "from setuptools import Extension, setup\nsetup(name='fast', ext_modules=[Extension('fast', ['fast.c'])])\n"
MODERN = "[build-system]\nrequires = ['setuptools']\n"
TOOLS, SIGHT = "FROM system AS builder", "--no-build-isolation"


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    ("files", "within", "without"),
    [
        ({"setup.py": "from setuptools import setup\nsetup()", "pyproject.toml": MODERN}, [], [TOOLS, SIGHT]),
        ({"setup.py": EXTENSION, "fast.c": "", "pyproject.toml": MODERN}, [TOOLS, "install -y"], [SIGHT]),
        ({"setup.py": "import pkg_resources"}, [SIGHT, "'setuptools<66' 'wheel<0.40'"], [TOOLS]),
        (
            {"setup.py": f"from Cython.Build import cythonize\nimport numpy\n{EXTENSION}", "fast.pyx": ""},
            [TOOLS, SIGHT, "'cython<3'", " numpy "],
            [],
        ),
        (
            {"setup.py": f"import helpers\n{EXTENSION}", "helpers.py": "", "fast.c": "", "pyproject.toml": MODERN},
            [],
            [SIGHT],
        ),
        (
            {"pyproject.toml": MODERN.replace("setuptools", "cmake"), "CMakeLists.txt": "", "a.cc": ""},
            [" cmake "],
            [SIGHT],
        ),
        ({"Cargo.toml": "", "src/lib.rs": "", "pyproject.toml": MODERN}, [" cargo"], [SIGHT]),
        ({"setup.py": "print 'Python 2'"}, [SIGHT], [TOOLS]),
        ({"setup.py": "import pkg_resources", "pyproject.toml": MODERN}, [SIGHT, "'setuptools<66'"], [TOOLS]),
        ({"setup.py": "setup(use_2to3=True)"}, [SIGHT, "'setuptools<58'"], [TOOLS]),
    ],
)
def test_source_decides_what_its_build_gets(
    plan: Planner, index: Index, files: dict[str, str], within: list[str], without: list[str]
) -> None:
    index.source("fast", "1.0", files)
    dockerfile = plan("fast==1.0\n").dockerfile or ""
    assert plan.chosen("from source") == ["fast==1.0"]
    assert all(each in dockerfile for each in within) and not any(each in dockerfile for each in without), dockerfile


@pytest.mark.parametrize(
    ("pins", "imports", "left_out"), [(30, ("numpy",), True), (30, ("of_a_system",), False), (1, ("numpy",), False)]
)
def test_unused_source_is_left_out_of_a_frozen_list_alone(
    plan: Planner, index: Index, pins: int, imports: tuple[str, ...], left_out: bool
) -> None:
    index.source("of-a-system", "1.0", {"setup.py": "", "a.c": ""})
    names = ("numpy", *(f"plain{number}" for number in range(pins - 1)))
    for name in names:
        index.wheels(name, "1.26.4", "311")
    listed = "".join(f"{name}==1.26.4\n" for name in names)
    image = plan(f"of-a-system==1.0\n{listed}", ScriptFacts(imports=imports))
    assert plan.chosen("from source") == ["of-a-system==1.0"] * (not left_out)
    assert ("of-a-system==1.0 (requirements.txt) is left out" in "".join(image.warnings)) == left_out
    plan(listed, ScriptFacts(imports=imports), requirements=("of-a-system==1.0",))
    assert plan.chosen("from source") == ["of-a-system==1.0"]


def test_unused_source_too_large_to_read_is_left_out_of_a_frozen_list(plan: Planner, index: Index) -> None:
    index.source("large", "1.0", {})
    index.archives["large-1.0.tar.gz"] = b""
    names = [f"plain{number}" for number in range(30)]
    for name in names:
        index.wheels(name, "1.0", "311")
    image = plan("large==1.0\n" + "".join(f"{name}==1.0\n" for name in names), ScriptFacts(imports=("plain1",)))
    assert "large==1.0 (requirements.txt) is left out" in "".join(image.warnings)


@pytest.mark.parametrize(
    "archive",
    [b"", b"PK\x03\x04", gzip.compress(b"no archive"), b"\x1f\x8b" + bytes(100)],
    ids=["empty", "zip", "gzip", "broken"],
)
def test_source_that_cannot_be_read_is_taken_for_one_that_compiles(plan: Planner, index: Index, archive: bytes) -> None:
    index.source("fast", "1.0", {})
    index.archives["fast-1.0.tar.gz"] = archive
    assert "build-essential" in (plan("fast==1.0\n").dockerfile or "")


def test_source_that_comes_byte_by_byte_ends_with_the_time_of_the_plan(plan: Planner, index: Index) -> None:
    index.source("fast", "1.0", {})
    index.trickles = True
    plan.limit_s, began = 6.0, time.monotonic()
    plan("fast==1.0\n")
    assert time.monotonic() - began < 12
    assert "its source was not read" in plan.made.reason("from source")


CUDA = """from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(ext_modules=[CUDAExtension("fast", ["csrc/fast.cpp", "csrc/fast_kernel.cu"])])
"""


def test_source_that_compiles_cuda_gets_nvcc_and_a_release_that_has_its_files(plan: Planner, index: Index) -> None:
    """The files of the extension are missing from some published sources."""
    index.has("torch", "torch-2.7.1-py3-none-any.whl")
    index.has("numpy", "numpy-2.0.0-py3-none-any.whl")
    index.source("fast", "1.0", {"setup.py": CUDA, "fast.egg-info/PKG-INFO": "", "fast.py": ""})
    made = plan("torch==2.7.1\nfast==1.0\n", target="h100")
    assert (made.base or "").startswith("nvidia/cuda:") and "-devel-" in (made.dockerfile or "")
    assert plan.made.reason("from source").endswith("unless it gets a wheel: fast==1.0 csrc/fast.cpp")
    index.source("fast", "1.1", {"setup.py": CUDA, "csrc/fast.cpp": "", "csrc/fast_kernel.cu": ""})
    index.source("fast", "1.2", {"setup.py": CUDA, "csrc/fast.cpp": "", "csrc/fast_kernel.cu": ""})
    index.uploaded = {f"fast-1.{minor}.tar.gz": f"202{minor + 3}-03-01" for minor in range(3)}
    index.uploaded |= dict.fromkeys(("torch-2.7.1-py3-none-any.whl", "numpy-2.0.0-py3-none-any.whl"), "2023-01-01")
    plan("torch==2.7.1\nfast\n", as_of="2023-06-01", target="h100")
    assert plan.chosen("from source") == ["fast==1.1"] and " lack " not in plan.made.reason("from source")
    plan("torch==2.7.1\nfast<1.1\n", as_of="2023-06-01", target="h100")
    assert plan.chosen("from source") == ["fast==1.0"]


def test_own_base_names_what_its_pip_builds(plan: Planner, index: Index) -> None:
    index.source("fast", "1.0", {})
    plan("fast\n", base="python:3.11-slim-bookworm")
    assert plan.chosen("from source") == ["fast==1.0"]


def test_no_more_than_some_sources_are_read_and_all_are_named(plan: Planner, index: Index) -> None:
    names = [f"fast{number}" for number in range(22)]
    for each in names:
        index.source(each, "1.0", {"setup.py": "", "pyproject.toml": MODERN})
    plan("\n".join(f"{each}==1.0" for each in names))
    assert plan.chosen("from source")[0].count("==") == 22
    assert sum(path.endswith(".tar.gz") for path in index.requested) <= 20 + 8


def test_login_of_an_index_with_sources_stays_out_of_the_plan_and_of_files(plan: Planner, index: Index) -> None:
    index.source("fast", "1.0", {})
    index.login = "me:lazuli"
    plan.environ["PIP_INDEX_URL"] = index.with_login(index.login)
    image = plan("fast==1.0\n")
    assert "its source was not read" in plan.made.reason("from source")
    assert "lazuli" not in image.model_dump_json() + str(plan.made.choices)
    kept = [file for file in (plan.project / "cache").rglob("*") if file.is_file() and b"lazuli" in file.read_bytes()]
    assert kept == []


def test_a_companion_of_a_package_that_pip_builds_is_named_without_its_release() -> None:
    needs = Needs(Requirements(lines=("matplotlib==3.1.3",)), "requirements.txt", "listed")
    lock = Lock((LockedPackage("numpy", "2.0.0"),), from_source=("matplotlib",))
    [(_, note)] = with_undeclared(needs, lock, "")
    assert re.match(r"matplotlib needs numpy<\S+, which", note)
