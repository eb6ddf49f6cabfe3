"""A built image is compared with the resolved versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.images.build.verify import _SCRIPT, _gpu_options, judge
from seatrial.job.plan import ContainerPlan, ImagePlan, Mount
from seatrial.stack.machine import parse_target
from tables import cases, constant

IMAGE = ImagePlan(tag="x:1", build=True, stack={"python": "3.11", "torch": "2.13.0", "build": "cu130"})
SHOWN = constant(__file__, "SHOWN")


@cases("change", "lacks", "target", "sentence")
def test_what_does_not_hold_is_a_sentence(
    change: dict[str, Any], lacks: tuple[str, ...] | None, target: str, sentence: str | None
) -> None:
    wrong = judge({**SHOWN, **dict.fromkeys(lacks or ()), **change}, IMAGE, parse_target(target)).wrong
    assert len(wrong) == bool(sentence) and (sentence or "") in "".join(wrong)


def test_kernels_of_every_format_must_run_on_every_gpu() -> None:
    whole = {"cuda:0": {"float32": "", "bfloat16": ""}}
    verification = judge({**SHOWN, "kernels": whole}, IMAGE, parse_target("h100"), on_gpu=True)
    assert verification.wrong == ()
    assert verification.kernels == {"cuda:0": ("float32", "bfloat16")}
    broken = {**whole, "cuda:1": {"float32": "", "bfloat16": "RuntimeError: no kernel image is available"}}
    (wrong,) = judge({**SHOWN, "kernels": broken}, IMAGE, parse_target("h100"), on_gpu=True).wrong
    assert wrong == "no bfloat16 kernel runs on cuda:1: RuntimeError: no kernel image is available"


def test_a_framework_that_sees_no_gpu_is_no_proof() -> None:
    (wrong,) = judge({**SHOWN, "kernels": {}}, IMAGE, parse_target("h100"), on_gpu=True).wrong
    assert wrong == "its framework sees no GPU in a container that has GPUs"


@pytest.mark.slow
def test_the_proof_runs_a_kernel_for_every_format() -> None:
    pytest.importorskip("torch")
    argv = [sys.executable, "-W", "ignore", "-c", _SCRIPT.read_text(), "torch", "cpu"]
    shown = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert shown["kernels"] == {"cpu": dict.fromkeys(("float32", "float64", "float16", "bfloat16", "int8"), "")}
    assert shown["errors"] == {}


def test_the_way_in_for_gpus_is_the_runs_own() -> None:
    container = ContainerPlan(
        name="n",
        hostname=None,
        command=(),
        user="1000:1000",
        workdir="/workspace",
        groups=("44",),
        devices=("/dev/nvidia0",),
        env={"LD_LIBRARY_PATH": "/drv", "TOKEN": "x"},
        mounts=(
            Mount(source=Path("/drv/libcuda.so.1"), target="/drv/libcuda.so.1", read_only=True),
            Mount(source=Path("/home/me/run"), target="/seatrial/run"),
            Mount(source=Path("/home/me/agent"), target="/seatrial/agent.pyz", read_only=True),
        ),
    )
    assert _gpu_options(container) == [
        *("--device", "/dev/nvidia0", "--group-add", "44", "--volume", "/drv/libcuda.so.1:/drv/libcuda.so.1:ro"),
        *("--env", "LD_LIBRARY_PATH=/drv"),
    ]
