from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from seatrial.errors import TargetError
from seatrial.job.model import Target
from seatrial.job.target import resolve_target

RECIPES = ("digits", "mnist")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (
        "train.py",
        "src/pkg/net.py",
        "src/pkg/__init__.py",
        "tools/eval.py",
        "run.sh",
        "lab.ipynb",
        ".venv/x.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "mnist").mkdir()
    (folder / "pyproject.toml").write_text('[project.scripts]\nlearn = "pkg.net:main"\nother = "elsewhere:main"\n')
    (tmp_path / "elsewhere.py").touch()
    (folder / "link.py").symlink_to(tmp_path / "elsewhere.py")
    return folder


@pytest.mark.parametrize(
    ("words", "module", "image", "target"),
    [
        (["train.py", "--epochs", "5"], None, None, Target(kind="script", value="train.py", args=("--epochs", "5"))),
        (["./tools/../tools/eval.py"], None, None, Target(kind="script", value="tools/eval.py")),
        (["mnist"], None, None, Target(kind="recipe", value="mnist")),  # though a folder is called so
        (["--lr", "1"], "pkg.net", None, Target(kind="module", value="pkg.net", args=("--lr", "1"))),
        ([], "torch.distributed.run", None, Target(kind="module", value="torch.distributed.run")),
        ([], None, "trainer:1", Target(kind="image", value="")),
        (["bash", "-c", "ls"], None, "trainer:1", Target(kind="image", value="", args=("bash", "-c", "ls"))),
        (["train.py"], None, "trainer:1", Target(kind="script", value="train.py")),
        (["/opt/app/train.py"], None, "trainer:1", Target(kind="image", value="", args=("/opt/app/train.py",))),
    ],
)
def test_targets(project: Path, words: list[str], module: str | None, image: str | None, target: Target) -> None:
    assert resolve_target(words, module, image, project, RECIPES) == target


def test_an_absolute_path_inside_the_project(project: Path) -> None:
    assert resolve_target([str(project / "train.py")], None, None, project, RECIPES).value == "train.py"


def test_a_file_named_like_a_recipe_is_the_users(project: Path) -> None:
    (project / "digits").touch()
    assert resolve_target(["digits"], None, None, project, RECIPES).kind == "script"


REFUSED = {
    "nothing": ([], None, None),
    "misspelled script": (["traim.py"], None, None),
    "misspelled recipe": (["mnits"], None, None),
    "elsewhere in the project": (["eval.py"], None, None),
    "without its suffix": (["train"], None, None),
    "nothing like it": (["zzzzzz.py"], None, None),
    "folder": (["tools"], None, None),
    "command of the project": (["learn"], None, None),
    "command of another project": (["other"], None, None),
    "folder without scripts": (["mnist/"], None, None),
    "notebook": (["lab.ipynb"], None, None),
    "shell script": (["run.sh"], None, None),
    "outside": (["../elsewhere.py"], None, None),
    "link to outside": (["link.py"], None, None),
    "module of the project": ([], "pkg.nett", None),
    "no module name": ([], "src/train.py", None),
    "script missing beside an image": (["traim.py"], None, "trainer:1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_targets(project: Path, name: str, snapshot: SnapshotAssertion) -> None:
    words, module, image = REFUSED[name]
    with pytest.raises(TargetError) as caught:
        resolve_target(words, module, image, project, RECIPES)
    text = f"{caught.value.message} | {caught.value.cause} | {caught.value.run}"
    assert text.replace(str(project), "PROJECT").replace(str(project.parent), "PARENT") == snapshot


@pytest.mark.parametrize(
    ("name", "text", "kind", "run"),
    [
        ("Dockerfile.gpu", "FROM x\n", "a Dockerfile", "seatrial build --check Dockerfile.gpu"),
        ("stack.yml", "# x\nservices:\n  a: {}\n", "a Compose file", "seatrial up -f stack.yml"),
        ("config.yaml", "lr: 1\n", "a YAML file", "head config.yaml"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_name(project: Path, name: str, text: str, kind: str, run: str) -> None:
    (project / name).write_text(text)
    with pytest.raises(TargetError, match=f"is {kind}, not a script") as caught:
        resolve_target([name], None, None, project, RECIPES)
    assert caught.value.run == run


def test_manifest_as_a_target_names_the_option_for_it(project: Path) -> None:
    (project / "job.yaml").write_text("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n")
    with pytest.raises(TargetError, match="is a Kubernetes manifest, which run takes with --file") as caught:
        resolve_target(["job.yaml"], None, None, project, RECIPES)
    assert caught.value.run == "seatrial run -f job.yaml"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("files", "here", "run"),
    [
        (["net/__main__.py", "net/model.py"], "here is the package net", "seatrial run -m net"),
        (["src/net/__main__.py"], "here is the package net", "seatrial run -m net"),
        (["net/__main__.py", "go.py"], "here are go.py", "seatrial run go.py"),
        (["venv/pyvenv.cfg", "venv/__main__.py"], "recipes: digits, mnist", "seatrial run digits"),
        (
            ["a b/lab.ipynb"],
            "here is the notebook a b/lab.ipynb",
            "jupyter nbconvert --to script 'a b/lab.ipynb' && seatrial run 'a b/lab.py'",
        ),
        ([], "recipes: digits, mnist", "seatrial run digits"),
    ],
)
def test_nothing_to_run_reports_what_is_here(tmp_path: Path, files: list[str], here: str, run: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(TargetError) as caught:
        resolve_target([], None, None, tmp_path, ("mnist", "digits"))
    assert caught.value.message == f"nothing to run: name a script, a recipe or -m module; {here}"
    assert caught.value.run == run


@pytest.mark.parametrize("word", ["traim.py", "tools", "learn"])
def test_what_stands_in_a_targets_place_is_a_target(project: Path, word: str) -> None:
    with pytest.raises(TargetError) as refused:
        resolve_target([word], None, None, project, RECIPES)
    assert refused.value.instead is not None and refused.value.instead[0] == word
    [*module, intended] = refused.value.instead[1]
    resolve_target([] if module else [intended], intended if module else None, None, project, RECIPES)


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["horovodrun", "-np", "4", "python", "train.py", "--lr", "1"], "seatrial run --gpus 4 train.py -- --lr 1"),
        (
            ["mpirun", "-np", "4", "-bind-to", "none", "python", "train.py", "-n", "3"],
            "seatrial run --gpus 4 train.py -- -n 3",
        ),
        (["srun", "-n2", "python", "train.py"], "seatrial run train.py"),
        (["mpiexec", "-n", "2", "./a.out"], "seatrial run --gpus 2 train.py"),
        (["torchrun", "train.py"], "seatrial run train.py"),
        (["torchrun", "--nproc_per_node=2", "train.py"], "seatrial run --gpus 2 train.py"),
    ],
)
def test_a_launcher_is_not_a_target(tmp_path: Path, words: list[str], run: str) -> None:
    with pytest.raises(TargetError, match="is a launcher, not a script") as refused:
        resolve_target(words, None, None, tmp_path, set())
    assert refused.value.run == run
