from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.packages import packages_of_imports
from seatrial.images.project import TORCH_CPU_INDEX, TORCH_VERSION, project_requirements, settle_torch
from seatrial.images.requirements import Requirements

TORCH = f"torch=={TORCH_VERSION}"


def lines_of(project: Path, *imports: str) -> tuple[str, ...]:
    return project_requirements(project, frozenset(imports), project)[0].lines


def settled(*lines: str, imports: tuple[str, ...] = ("torch",), constraints: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = Requirements(lines, constraints)
    return settle_torch(found, frozenset(imports), cpu_only=False, own_sources=False)[0].lines


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
    found, choice = project_requirements(tmp_path, frozenset({"yaml"}), tmp_path)
    assert found.lines == ("pyyaml",)
    assert "taken from the imports" in choice.reason


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


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), (TORCH, "numpy")),
        (("torch", "numpy"), (TORCH, "numpy")),
        (("numpy<2", "Torch>=2.6"), ("numpy<2", TORCH)),
        (("torch==2.6.0",), ("torch==2.6.0",)),
        (("torch<2.9",), ("torch<2.9",)),
        (("torch>=2.14",), ("torch>=2.14",)),
        (("torchvision", "torch"), ("torchvision", TORCH, "numpy")),
        (("torchvision==0.20.0",), ("torchvision==0.20.0", "torch", "numpy")),
        (("torch @ https://e.org/torch-2.0-cp311-none-any.whl",),) * 2,
    ],
)
def test_torch_is_fixed_where_it_is_open(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    if "torch @" in str(lines):
        assert settled(*lines)[0] == expected[0]
    else:
        assert settled(*lines) == expected


def test_a_constraint_decides_on_torch() -> None:
    assert settled("torch", "numpy", constraints=("torch==2.8.0",)) == ("torch", "numpy")


def test_no_torch_where_nothing_imports_it() -> None:
    assert settle_torch(Requirements(("numpy",)), frozenset({"numpy"}), cpu_only=True, own_sources=False) == (
        Requirements(("numpy",)),
        None,
        [],
    )


@pytest.mark.parametrize(
    ("cpu_only", "own_sources", "options", "index", "build"),
    [
        (True, False, (), TORCH_CPU_INDEX, f"CPU, from {TORCH_CPU_INDEX}"),
        (True, True, (), None, "as your index has it"),
        (True, False, ("--index-url https://e.org/simple",), None, "as your index has it"),
        (False, False, (), None, "CUDA"),
    ],
)
def test_which_build_of_torch(
    cpu_only: bool, own_sources: bool, options: tuple[str, ...], index: str | None, build: str
) -> None:
    found = Requirements(("torch",), options=options)
    _, extra, choices = settle_torch(found, frozenset({"torch"}), cpu_only=cpu_only, own_sources=own_sources)
    assert extra == index
    assert choices[-1].value == build
