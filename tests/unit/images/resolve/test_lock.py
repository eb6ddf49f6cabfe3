"""What is installed by hash, in which layer, and which lines pip resolves itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from package_indexes import Index, serving
from seatrial.errors import ConfigError
from seatrial.job.plan import ImagePlan
from tables import cases

GIT = "git+https://127.0.0.1:9/x.git"


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as server:
        server.has("torch", "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl")
        server.has("sympy", "sympy-1.13-py3-none-any.whl", "sympy-1.14-py3-none-any.whl")
        server.has("nvidia-nccl-cu13", "nvidia_nccl_cu13-2.29.7-py3-none-manylinux_2_18_x86_64.whl")
        server.has("numpy", "numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl")
        server.has("pandas", "pandas-2.2.2-cp311-cp311-manylinux_2_17_x86_64.whl")
        server.has("tqdm", "tqdm-4.67.1-py3-none-any.whl")
        server.has("built", "built-1.0.tar.gz")
        server.needs["torch-2.13.0"] = ("sympy>=1.13", "nvidia-nccl-cu13==2.29.7")
        server.needs["torch-2.13.0+cpu"] = ("sympy>=1.13",)
        yield server


@pytest.fixture
def of_torch() -> Iterator[Index]:
    """The index that stands in for download.pytorch.org/whl/cpu."""
    with serving() as server:
        server.has("torch", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
        server.needs["torch-2.13.0+cpu"] = ("sympy>=1.13",)
        yield server


def layers(plan: ImagePlan) -> dict[str, list[str]]:
    """Layer → its lines, hashes left out: each line of a layer by hash must have one."""
    found = {}
    for name, text in plan.context_texts.items():
        lines = text.split("\n")[:-1]
        hashed = name.startswith(("required/", "large/", "locked/"))
        assert not hashed or all(" --hash=sha256:" in line for line in lines)
        found[name.partition("/")[0]] = [line.partition(" --hash")[0] for line in lines]
    return found


@pytest.mark.parametrize(
    ("requirements", "expected", "left"),
    [
        (["tqdm", "pandas==2.2.2"], {"large": ["pandas==2.2.2"], "locked": ["tqdm==4.67.1"]}, []),
        (["tqdm", GIT], {"locked": ["tqdm==4.67.1"], "packages": ["tqdm", GIT]}, [GIT]),
        (["tqdm", "built"], {"locked": ["tqdm==4.67.1"], "packages": ["tqdm", "built"]}, ["built"]),
    ],
    ids=["nothing is left to pip", "an address follows in the last step", "a package without a wheel is built there"],
)
def test_list_is_locked_and_the_rest_is_named(
    plan: Any, requirements: list[str], expected: dict[str, list[str]], left: list[str]
) -> None:
    made = plan("\n".join(requirements))
    assert layers(made) == expected and plan.chosen("not locked") == left
    assert str(made.dockerfile).count("--no-deps --require-hashes --only-binary :all:") == len(expected) - bool(left)


def test_framework_whose_index_does_not_answer_is_left_to_pip_and_the_rest_is_locked(plan: Any) -> None:
    """The CUDA packages of the other build on the index are not for this image."""
    made = plan("torch==2.13.0\nnumpy\ntqdm\n")
    required = ["numpy==2.4.6", "sympy==1.14"]
    assert layers(made) == {"framework": ["torch==2.13.0"], "required": required, "locked": ["tqdm==4.67.1"]}
    assert plan.chosen("not locked") == ["torch==2.13.0"]


def test_framework_of_pytorchs_index_is_locked_with_its_build(plan: Any, of_torch: Index) -> None:
    plan.mirror = of_torch.url
    made = plan("torch==2.13.0\nnumpy\n")
    assert layers(made) == {"framework": ["torch==2.13.0+cpu"], "required": ["numpy==2.4.6", "sympy==1.14"]}
    assert "--hash" in made.context_texts["framework/requirements.txt"] and plan.chosen("not locked") == []


@cases("requirements", "image")
def test_what_pip_must_decide_is_left_as_it_is(plan: Any, requirements: str, image: dict[str, object]) -> None:
    assert set(layers(plan(f"{requirements}\n", **image))) == {"packages"}


def test_versions_that_the_framework_leaves_open_are_those_of_every_other_project(plan: Any) -> None:
    first = plan("torch==2.13.0\ntqdm\n")
    plan.index.has("sympy", "sympy-1.15-py3-none-any.whl")
    second = plan("torch==2.13.0\npandas\n")
    assert layers(first)["required"] == layers(second)["required"] == ["numpy==2.4.6", "sympy==1.14"]
    assert layers(plan("torch==2.13.0\nsympy<1.14\n"))["required"] == ["numpy==2.4.6", "sympy==1.13"]


def test_a_lock_is_used_when_the_index_has_gone(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan("tqdm\n")
    monkeypatch.setattr("seatrial.images.resolve.uv.FRESH_S", -1.0)
    plan.index.login = "me:secret"
    assert plan("tqdm\n").tag == first.tag


def test_a_name_on_no_index_is_refused_with_or_without_a_version(plan: Any) -> None:
    with pytest.raises(ConfigError, match=r"nobody-has-this \(requirements.txt\): the package index has no package"):
        plan("tqdm\nnobody-has-this\n")
