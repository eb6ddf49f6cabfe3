"""seatrial export, from a trained model to its receipt; in containers, and as a process of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli_project import Project

pytest.importorskip("torch")


def save_digits(folder: Path) -> None:
    """Return the recipe's saved model, untrained."""
    import torch

    from seatrial.recipes import mnist
    from seatrial.train.saving.examples import Normalisation, image_examples, numbered, save_examples
    from seatrial.train.saving.model_files import save_model

    torch.manual_seed(0)
    model, images = mnist.network(28, 28, 10), torch.randint(0, 256, (20, 1, 28, 28)).to(torch.uint8)
    weights = save_model(model, folder, "digits")[-1]
    save_examples(image_examples("digits", model, images, Normalisation.of(images), numbered(10)), weights)


def criterion(project: Project, name: str) -> dict[str, Any]:
    return next(each for each in project.receipt()["criteria"] if each["id"] == name)


def card(project: Project, path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project.folder / path).read_bytes())
    return loaded


def test_a_process_of_this_machine(local_project: Project) -> None:
    save_digits(local_project.folder / "models")
    shown = local_project.cli("export", "digits", "--to", "safetensors", "--on", "local")
    assert "Exported model agrees" in shown.stdout + shown.stderr
    assert local_project.receipt()["header"]["target"].startswith("export digits --to safetensors")
    assert criterion(local_project, "export-agrees")["verdict"] == "pass"
    assert card(local_project, "exports/digits.json")["largest_difference"] <= 1e-4


@pytest.mark.parametrize(
    ("words", "text", "next_command"),
    [
        (("digits", "--to", "tflite"), "no such format", "seatrial export --trust digits --to onnx --on local"),
        (("digits", "--to", "onnx"), "No trained digits model", "seatrial run digits"),
        (("last", "--to", "onnx"), 'No run, recipe or file "last"', "seatrial run digits"),
        (("none.pt2", "--to", "onnx"), "File not found: none.pt2", "ls "),
        (("m.pkl", "--to", "onnx"), "is a pickle", "torch.save(model.state_dict()"),
        (("digits", "--to", "onnx", "--tolerance", "-1"), "must be above 0", "--tolerance 1e-4"),
    ],
)
def test_what_cannot_be_intended(local_project: Project, words: tuple[str, ...], text: str, next_command: str) -> None:
    local_project.write("m.pkl", "x")
    shown = local_project.cli("export", *words, "--on", "local", exit_code=2)
    assert text in shown.stderr and next_command in shown.stderr
    assert not local_project.runs


@pytest.mark.slow
@pytest.mark.docker
def test_digits_to_every_format_in_a_container(docker_project: Project) -> None:
    project = docker_project
    project.cli("run", "digits", "--on", "docker", "--gpus", "none", "--", "--epochs", "2", timeout_s=900)
    for to in ("onnx", "pt2", "safetensors"):
        project.cli("export", "last", "--to", to, "--out", f"made/{to}/", "--on", "docker", timeout_s=900)
        assert criterion(project, "export-agrees")["verdict"] == "pass"
        assert (project.folder / f"made/{to}/digits.{to}").stat().st_size > 800_000
        written = card(project, f"made/{to}/digits.json")
        assert written["real"] and written["labels"][9] == "9" and written["batches"] == [1, 16, 37]
    weights = project.folder / "models/digits.safetensors"
    before = weights.read_bytes()
    options = ("--to", "onnx", "--on", "docker")
    project.cli("export", "digits", *options, "--tolerance", "1e-30", exit_code=1, timeout_s=900)
    assert "nothing was saved" in project.output("stderr") and not (project.folder / "exports/digits.onnx").exists()
    assert weights.read_bytes() == before and criterion(project, "export-agrees")["verdict"] == "fail"
    weights.write_bytes(before[:-5])
    shown = project.cli("export", "digits", *options, exit_code=1, timeout_s=900)
    assert "is truncated, damaged or no safetensors file" in shown.stdout + shown.stderr
