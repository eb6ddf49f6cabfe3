from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.project import LOCK, Needs, project_needs
from seatrial.images.requirements.packages import packages_of_imports


def needs_of(project: Path, *imports: str) -> Needs:
    return project_needs(project, frozenset(imports), project)


def lines_of(project: Path, *imports: str) -> tuple[str, ...]:
    return needs_of(project, *imports).requirements.lines


def test_imports_become_packages(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "src" / "mine").mkdir(parents=True)
    found = lines_of(tmp_path, "cv2", "PIL", "sklearn", "sentence_transformers", "os", "model", "mine", "seatrial")
    assert found == ("opencv-python-headless", "pillow", "scikit-learn", "sentence-transformers")


def test_standard_modules_of_any_version_are_no_packages() -> None:
    assert packages_of_imports({"tomllib", "distutils", "argparse", "__future__"}, ()) == ()


def test_requirements_txt_comes_before_pyproject_and_imports(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["pandas"]\n')
    assert lines_of(tmp_path, "numpy") == ("pandas",)
    (tmp_path / "requirements.txt").write_text("scipy\n")
    assert lines_of(tmp_path, "numpy") == ("scipy",)


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
    assert (found.requirements.lines, str(found.python)) == (("einops>=0.8", "torch"), "==3.10.*")
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
