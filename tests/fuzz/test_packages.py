"""Package lists of a project: requirements, pyproject.toml, uv.lock, environment.yml, setup.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzz.attack import attack, one_case
from fuzz.hostile import BOMB, as_toml, changed_values, nearly
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts

REQUIREMENTS = """\
# what it needs
torch==2.6.0
numpy>=1.26,<3 ; python_version >= "3.9"  # arrays
transformers[torch]~=4.46
jax[cuda12]
nvidia-cudnn-cu12==9.1.0.70
torchvision==0.21.0 \\
    --hash=sha256:0123456789abcdef
--extra-index-url https://download.pytorch.org/whl/cu126
-r more.txt
-c pins.txt
my-package @ https://example.org/my_package-1.0-py3-none-any.whl
git+https://example.org/other.git@v1
"""
PROJECT = {
    "project": {
        "name": "x",
        "requires-python": ">=3.10",
        "dependencies": ["torch>=2.6", "numpy ; python_version > '3.8'"],
        "optional-dependencies": {"extra": ["tqdm"], "more": ["rich==13"]},
    },
    "tool": {"seatrial": {"gpus": "auto"}},
}
PYPROJECT = """\
[project]
name = "x"
requires-python = ">=3.10"
dependencies = [
  "torch>=2.6",
  "numpy ; python_version > '3.8'",
]
[project.optional-dependencies]
extra = ["tqdm"]
"""
LOCKED = {
    "version": 1,
    "package": [
        {
            "name": "torch",
            "version": "2.6.0",
            "source": {"registry": "https://pypi.org/simple"},
            "dependencies": [{"name": "numpy"}],
            "wheels": [{"url": "https://e.org/torch.whl", "hash": "sha256:00"}],
        },
        {"name": "numpy", "version": "2.1.0", "source": {"registry": "https://pypi.org/simple"}},
        {"name": "x", "version": "0.1.0", "source": {"virtual": "."}},
    ],
}
UV_LOCK = """\
version = 1
requires-python = ">=3.10"

[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://example.org/numpy.whl", hash = "sha256:00", size = 1 },
]

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [
    { name = "numpy" },
]
"""
ENVIRONMENT = """\
name: training
channels: [conda-forge, defaults]
dependencies:
  - python=3.11
  - cudatoolkit=11.8
  - pip:
      - torch==2.6.0
      - "numpy>=1.26"
      - -r requirements.txt
"""
SETUP = """\
from setuptools import find_packages, setup

needs = ["torch>=2.6", "numpy"]
setup(
    name="x",
    python_requires=">=3.10",
    install_requires=needs,
    packages=find_packages(),
)
"""


def planned(project: Path) -> object:
    """All that a plan makes of the project's files."""
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    return plan_image(job, script=ScriptFacts(imports=("numpy", "torch", "yaml")), cpu_only=True)


def plan_with(project: Path, name: str, data: bytes) -> object:
    (project / name).write_bytes(data)
    return planned(project)


def test_requirements(project: Path, cases: int) -> None:
    (project / "more.txt").write_text("tqdm\n")
    (project / "pins.txt").write_text("numpy==2.1.0\n")
    attack(lambda data: plan_with(project, "requirements.txt", data), nearly(REQUIREMENTS, "torch\n"), cases)


def test_seatrial_lock(project: Path, cases: int) -> None:
    (project / "requirements.txt").write_text("torch\n")
    attack(lambda data: plan_with(project, "seatrial.lock", data), nearly("torch==2.6.0\nnumpy==2.1.0\n"), cases)


def test_pyproject(project: Path, cases: int) -> None:
    inputs = st.one_of(nearly(PYPROJECT), changed_values(PROJECT).map(as_toml))
    attack(lambda data: plan_with(project, "pyproject.toml", data), inputs, cases)


def test_uv_lock(project: Path, cases: int) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT)
    inputs = st.one_of(nearly(UV_LOCK), changed_values(LOCKED).map(as_toml))
    attack(lambda data: plan_with(project, "uv.lock", data), inputs, cases)


def test_environment(project: Path, cases: int) -> None:
    attack(lambda data: plan_with(project, "environment.yml", data), nearly(ENVIRONMENT), cases)


def test_setup(project: Path, cases: int) -> None:
    attack(lambda data: plan_with(project, "setup.py", data), nearly(SETUP), cases)


#: What a generator hardly finds: each took seconds, gigabytes or a traceback once.
KNOWN = {
    "alias bomb": ("environment.yml", BOMB + "dependencies: [{pip: [*i]}]\n"),
    "merge bomb": (
        "environment.yml",
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)),
    ),
    "yaml, deep": ("environment.yml", "dependencies: " + "[" * 100_000),
    "yaml, deep blocks": ("environment.yml", "dependencies:\n" + "- " * 50_000),
    "yaml, a long number": ("environment.yml", "dependencies: [" + "9" * 5000 + "]"),
    "yaml, half a surrogate": ("environment.yml", 'dependencies:\n- pip: ["\\ud800"]\n'),
    "yaml, a tag": ("environment.yml", "dependencies: !!timestamp x\n"),
    "toml, deep": ("pyproject.toml", "a = " + "[" * 100_000),
    "toml, a key of many parts": ("pyproject.toml", ".".join("a" * 60_000) + " = 1"),
    "toml, a long number": ("pyproject.toml", "[project]\ndependencies = [" + "9" * 5000 + "]"),
    "toml, a number without end": ("pyproject.toml", "[project]\ndependencies = [0x" + "f" * 50_000 + "]"),
    "specifiers": ("pyproject.toml", '[project]\nrequires-python = ["x"]\ndependencies = []'),
    "a long version": ("pyproject.toml", f'[project]\nrequires-python = ">={"9" * 5000}"\ndependencies = []'),
    "an option in a name": ("pyproject.toml", '[project]\ndependencies = ["torch\\n--index-url http://example.org"]'),
    "spaces": ("requirements.txt", "torch" + " " * 200_000 + "x"),
    "spaces in a dependency": ("pyproject.toml", '[project]\ndependencies = ["torch' + " " * 200_000 + 'x"]'),
    "brackets": ("requirements.txt", "torch ; " + "(" * 100_000),
    "many lines": ("requirements.txt", "a\n" * 300_000),
    "a version of many digits": ("requirements.txt", "torch==" + "9" * 5000),
    "a long line": ("requirements.txt", "torch==1" + ".1" * 400_000),
    "continued for ever": ("requirements.txt", "torch \\\n" * 100_000),
    "a sum": ("setup.py", "a = 1" + " + 1" * 20_000),
    "setup.py, brackets": ("setup.py", "(" * 100_000),
    "setup.py, a null byte": ("setup.py", "a = 1\0"),
    "setup.py, unary": ("setup.py", "x = " + "-" * 100_000 + "1"),
    "many packages": ("uv.lock", '[[package]]\nname = "a"\n' * 100_000),
}


@pytest.mark.parametrize("known", KNOWN)
def test_known(project: Path, known: str) -> None:
    name, text = KNOWN[known]
    if name == "uv.lock":
        (project / "pyproject.toml").write_text(PYPROJECT)
    one_case(lambda data: plan_with(project, name, data), text.encode())


def test_includes_of_includes(project: Path) -> None:
    for number in range(3000):
        (project / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n")
    assert one_case(lambda data: plan_with(project, "requirements.txt", data), b"-r r0.txt\n") is not None


def test_what_is_right_is_read(project: Path) -> None:
    """The samples themselves are files that a plan accepts."""
    (project / "more.txt").write_text("tqdm\n")
    (project / "pins.txt").write_text("numpy==2.1.0\n")
    for name, text in (("requirements.txt", REQUIREMENTS.replace("nvidia-cudnn-cu12==9.1.0.70\n", "")),):
        (project / name).write_text(text)
        planned(project)
        (project / name).unlink()
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "uv.lock").write_text(UV_LOCK)
    assert "uv.lock pins 2 versions" in str(planned(project))
    (project / "pyproject.toml").unlink()
    (project / "setup.py").write_text(SETUP)
    assert "setup.py" in str(planned(project))
    (project / "setup.py").unlink()
    (project / "environment.yml").write_text(ENVIRONMENT.replace("      - -r requirements.txt\n", ""))
    assert "environment.yml lists them" in str(planned(project))
