"""mnist with --framework: what is installed, checked and started instead of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.images.plan import plan_image
from seatrial.images.recipes import recipe_requirements
from seatrial.job.keras_backend import with_keras_backend
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts
from seatrial.planning.launcher import choose_launcher
from seatrial.planning.plan import _check
from seatrial.planning.target_command import container_places, target_argv
from seatrial.stack.machine import parse_target

JAX, TENSORFLOW = ("--framework", "jax"), ("--framework=tensorflow",)


def job(tmp_path: Path, *args: str, recipe: str = "mnist") -> Job:
    return Job(project=tmp_path, target=Target(kind="recipe", value=recipe, args=args))


@pytest.mark.parametrize(
    ("args", "gpu", "line"),
    [
        (JAX, False, "jax=="),
        (JAX, True, "jax[cuda13]=="),
        (TENSORFLOW, False, "tensorflow-cpu=="),
        (TENSORFLOW, True, "tensorflow[and-cuda]=="),
    ],
)
def test_what_is_installed(tmp_path: Path, args: tuple[str, ...], gpu: bool, line: str) -> None:
    asked = job(tmp_path, *args)
    script = script_facts(asked.target, tmp_path)
    machine = parse_target("driver=580.65.06,gpu=h100") if gpu else None
    plan, choices = plan_image(asked, script=script, cpu_only=not gpu, machine=machine)
    lines = "\n".join(plan.context_texts.values()).split()
    assert any(each.startswith(line) for each in lines) and "keras" in lines
    assert not any(each.startswith("torch") for each in lines)
    assert next(iter(plan.stack.keys() & {"jax", "tensorflow", "torch"})) == script.framework
    assert plan.own_wheel, [each.what for each in choices]


def test_the_default_stays_torch(tmp_path: Path) -> None:
    for args in ((), ("--framework", "torch"), ("--epochs", "2")):
        asked = job(tmp_path, *args)
        script = script_facts(asked.target, tmp_path)
        assert script.framework == "torch" and _check(asked, script, 1) == "torch"
        assert recipe_requirements(asked.target) == ("torch", "numpy", "safetensors")
        assert (
            "seatrial.recipes.mnist"
            in target_argv(asked.target, None, "python", container_places(asked, resumes=False))[0]
        )


@pytest.mark.parametrize(("args", "framework"), [(JAX, "jax"), (TENSORFLOW, "tensorflow")])
def test_what_is_started_and_checked(tmp_path: Path, args: tuple[str, ...], framework: str) -> None:
    asked = job(tmp_path, *args)
    script = with_keras_backend(script_facts(asked.target, tmp_path), {"KERAS_BACKEND": "torch"}, tmp_path)
    assert script.framework == framework, "what the recipe sets itself wins, as in a script"
    assert _check(asked, script, 1) == framework
    argv, _ = target_argv(asked.target, None, "python", container_places(asked, resumes=True))
    assert argv[:3] == ["python", "-m", "seatrial.recipes.mnist_keras"] and argv[-len(args) :] == list(args)
    assert choose_launcher(asked, script, 1)[0] == "none"
    launcher, choice = choose_launcher(asked, script, 2)
    assert launcher == "none" and f"all GPUs from one process with {framework}" in choice.reason


@pytest.mark.parametrize(("recipe", "framework"), [("mnist", "mxnet"), ("cifar10", "jax"), ("mnist", "JAX")])
def test_what_cannot_be_is_refused_before_anything_is_built(tmp_path: Path, recipe: str, framework: str) -> None:
    with pytest.raises(UsageError, match=f"{recipe} does not train with {framework}"):
        recipe_requirements(job(tmp_path, "--framework", framework, recipe=recipe).target)


def test_bench_gets_what_it_compares(tmp_path: Path) -> None:
    def compared(names: str) -> Target:
        return job(tmp_path, "train", "mnist", "--compare", names, recipe="bench").target

    everything = recipe_requirements(compared("torch,tensorflow,jax"))
    assert set(everything) == {"torch", "numpy", "safetensors", "keras", "tensorflow", "jax"}
    assert recipe_requirements(compared("tensorflow,jax")) == ("keras", "numpy", "tensorflow", "jax")
    assert recipe_requirements(compared("eager,graph")) == ("torch", "numpy", "safetensors")
    assert "jax" in recipe_requirements(compared("torch,jax"), gpus=True)
    with pytest.raises(UsageError, match="one image cannot hold both"):
        recipe_requirements(compared("torch,tensorflow"), gpus=True)
    target = job(tmp_path, "train", "digits", "--compare", "torch,jax", recipe="bench").target
    with pytest.raises(UsageError, match="digits does not train with jax"):
        recipe_requirements(target)
