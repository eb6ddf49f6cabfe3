from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.project import LOCK, Needs, project_needs
from seatrial.images.requirements.packages import packages_of_imports
from seatrial.job.script import ScriptFacts


def needs_of(project: Path, *imports: str) -> Needs:
    return project_needs(project, ScriptFacts(imports=imports), project)


def lines_of(project: Path, *imports: str) -> tuple[str, ...]:
    return needs_of(project, *imports).requirements.lines


def test_imports_become_packages(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "src" / "mine").mkdir(parents=True)
    found = lines_of(tmp_path, "cv2", "PIL", "sklearn", "sentence_transformers", "os", "model", "mine", "seatrial")
    assert found == ("opencv-python-headless", "pillow", "scikit-learn", "sentence-transformers")


def test_standard_modules_of_any_version_are_no_packages() -> None:
    assert packages_of_imports({"tomllib", "distutils", "argparse", "__future__"}, ()).lines == ()


def test_requirements_txt_comes_before_pyproject_and_imports(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["pandas"]\n')
    assert lines_of(tmp_path, "pandas") == ("pandas",)
    (tmp_path / "requirements.txt").write_text("scipy\n")
    assert lines_of(tmp_path, "scipy") == ("scipy",)


def test_pyproject_extras_give_what_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\ndependencies = ["numpy>=1.26"]\n[project.optional-dependencies]\n'
        'images = ["pillow>=10", "numpy"]\ndocs = ["sphinx"]\n'
    )
    assert lines_of(tmp_path, "numpy", "PIL", "torch") == ("numpy>=1.26", "pillow>=10")


def test_a_pyproject_without_dependencies_falls_back_to_imports(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.seatrial]\ngpus = "none"\n[project]\nname = "x"\n')
    found = needs_of(tmp_path, "yaml")
    assert found.requirements.lines == ("pyyaml",)
    assert "using the imports" in found.choice.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[project]\ndependencies = [\n  "numpy",\n  "torch=2",\n]\n', "pyproject.toml:4: 'torch=2'"),
        ("[project]\ndependencies = 'numpy'\n", "project.dependencies must be a list of strings"),
        ("[project\n", r"pyproject.toml: .*line 1"),
    ],
)
def test_a_bad_pyproject_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        lines_of(tmp_path, "numpy")


def test_uv_lock_fixes_versions_but_not_those_of_one_build(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nrequires-python = ">=3.12"\ndependencies = ["torch", "einops"]\n'
    )
    (tmp_path / "uv.lock").write_text(
        "version = 1\n"
        '[[package]]\nname = "x"\nversion = "0.1"\nsource = { virtual = "." }\n'
        '[[package]]\nname = "einops"\nversion = "0.8.1"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "torch"\nversion = "2.9.1"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "nvidia-cudnn-cu12"\nversion = "9"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "numpy"\nversion = "1"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "numpy"\nversion = "2"\nsource = { registry = "https://pypi.org/simple" }\n'
    )
    found = needs_of(tmp_path, "torch")
    assert found.requirements.lines == ("torch", "einops")
    assert found.requirements.constraints == ("einops==0.8.1", "torch==2.9.1")
    assert str(found.python) == ">=3.12"


def test_setup_py_is_read_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nraise SystemExit('run!')\nneeds = ['numpy>=1.26', 'torch']\n"
        "setup(name='x', install_requires=needs, python_requires='>=3.9')\n"
    )
    found = needs_of(tmp_path, "numpy")
    assert (found.requirements.lines, str(found.python), found.source) == (
        ("numpy>=1.26", "torch"),
        ">=3.9",
        "setup.py",
    )
    (tmp_path / "setup.py").write_text("setup(\n install_requires=[\n  'torch=2'])\n")
    with pytest.raises(ConfigError, match=r"^setup.py:3: 'torch=2'"):
        needs_of(tmp_path, "numpy")


def test_the_pip_part_of_environment_yml(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(
        "name: x\ndependencies:\n  - python=3.10\n  - pytorch\n  - pip:\n    - einops>=0.8\n"
    )
    found = needs_of(tmp_path, "torch", "einops")
    assert (found.requirements.lines, str(found.python)) == (("einops>=0.8",), "==3.10.*")
    (tmp_path / "environment.yml").write_text("dependencies:\n  - pip:\n    - einops = 1\n")
    with pytest.raises(ConfigError, match=r"^environment.yml:3: 'einops = 1'"):
        needs_of(tmp_path, "torch")
    (tmp_path / "environment.yml").write_text("a: [\n")
    with pytest.raises(ConfigError, match=r"^environment.yml:2: not YAML"):
        needs_of(tmp_path, "torch")


def test_transformers_gets_what_it_asks_for_by_itself(tmp_path: Path) -> None:
    assert lines_of(tmp_path, "transformers", "torch") == ("torch", "transformers", "accelerate")
    (tmp_path / "train.py").write_text("from transformers import BitsAndBytesConfig\n")
    assert lines_of(tmp_path, "transformers")[-2:] == ("accelerate", "bitsandbytes")


def test_a_lock_of_ours_is_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("numpy==2.1.0\n")
    found = needs_of(tmp_path, "numpy")
    assert found.requirements.constraints == ("numpy==2.1.0",)
    assert LOCK in found.reason


def script(**facts: object) -> ScriptFacts:
    return ScriptFacts(**facts)  # type: ignore[arg-type]


def test_what_the_script_cannot_do_without_joins_the_list(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("Pillow==9.3.0\nopencv-python\nwandb\n")
    found = needs_of(tmp_path, "PIL", "cv2", "torch", "torchvision", "mpi4py", "wandb")
    assert found.requirements.lines == ("Pillow==9.3.0", "opencv-python", "wandb", "mpi4py", "torchvision")
    assert "the target also imports mpi4py (imported), torchvision" in found.choice.reason


def test_hashes_stay_complete(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.0.0 --hash=sha256:" + "0" * 64 + "\n")
    assert len(lines_of(tmp_path, "numpy", "yaml")) == 1


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("open_clip", "open-clip-torch"),
        ("usb", "pyusb"),
        ("pl_bolts", "lightning-bolts"),
        ("MySQLdb", "mysqlclient"),
        ("ruamel", "ruamel.yaml"),
        ("skopt", "scikit-optimize"),
        ("segmentation_models_pytorch", "segmentation-models-pytorch"),
    ],
)
def test_names_whose_package_is_called_otherwise(tmp_path: Path, name: str, package: str) -> None:
    found = needs_of(tmp_path, name)
    assert (found.requirements.lines, found.warnings) == ((package,), ())


@pytest.mark.parametrize("name", ["apex", "clip", "detectron2"])
def test_a_name_that_is_another_projects_on_the_index_is_never_installed(tmp_path: Path, name: str) -> None:
    found = needs_of(tmp_path, name)
    assert found.requirements.lines == () and "git+https://github.com/" in found.warnings[0]
    (tmp_path / "requirements.txt").write_text(f"git+https://github.com/someone/{name}\n")
    assert needs_of(tmp_path, name).warnings == ()


def test_a_guess_is_named_and_generic_names_are_none(tmp_path: Path) -> None:
    found = project_needs(tmp_path, script(imports=("utils", "zebrafish"), where={"zebrafish": "train.py:3"}), tmp_path)
    assert found.requirements.lines == ("zebrafish",)
    assert "zebrafish is a guess: train.py:3 imports zebrafish" in found.warnings[0]
    assert "utils: not in the project" in found.warnings[1]
    (tmp_path / "requirements.txt").write_text("numpy\n")
    listed = needs_of(tmp_path, "zebrafish")
    assert listed.requirements.lines == ("numpy",) and "requirements.txt does not list it" in listed.warnings[0]


def test_tensorboard_of_torch(tmp_path: Path) -> None:
    modules = {"torch.utils.tensorboard": "train.py:1"}
    assert project_needs(tmp_path, script(imports=("torch",), modules=modules), tmp_path).requirements.lines == (
        *("torch", "tensorboard"),
    )


def test_a_version_that_the_script_asserts(tmp_path: Path) -> None:
    facts = script(imports=("timm",), asserted={"timm": ("0.3.2", "main.py:28")})
    assert project_needs(tmp_path, facts, tmp_path).requirements.lines == ("timm==0.3.2",)
    (tmp_path / "requirements.txt").write_text("timm==0.4.12\n")
    with pytest.raises(ConfigError, match=r"^main.py:28 ends the script unless timm is 0.3.2, and req"):
        project_needs(tmp_path, facts, tmp_path)


def test_a_framework_that_only_a_function_imports(tmp_path: Path) -> None:
    facts = script(optional_imports=("torch",), framework="torch")
    assert project_needs(tmp_path, facts, tmp_path).requirements.lines == ("torch",)
