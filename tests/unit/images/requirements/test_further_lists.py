"""Lists of less usual names, setup.py's computed ones, and what a project's pages install."""

from __future__ import annotations

from pathlib import Path

import pytest

from image_plans import write_files
from seatrial.errors import ConfigError
from seatrial.images.requirements.other_formats import read_setup
from seatrial.images.requirements.pip_format import Needs
from seatrial.images.requirements.project import project_needs
from seatrial.job.script import ScriptFacts


def needs_of(folder: Path, imports: tuple[str, ...] = (), **files: str) -> Needs:
    write_files(folder, files)
    return project_needs(folder, ScriptFacts(imports=imports), folder)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["requirements/runtime.txt", "requirements/tests.txt", "requirements/docs.txt"], "requirements/runtime.txt"),
        (["requirements/base.txt", "requirements/train.txt"], "requirements/train.txt"),
        (["requirements_dev.txt", "requirements-gpu.txt", "requirements-cpu.txt"], "requirements-gpu.txt"),
        (["requirement.txt", "frequency.txt"], "requirement.txt"),
        (["pip_requirements.txt"], "pip_requirements.txt"),
        (["requirements/cuda118.txt"], "requirements/cuda118.txt"),
        (["docker/requirements.txt", "client/requirements-gpu.txt"], "docker/requirements.txt"),
        (["docker/requirements.txt", "requirements/full.txt"], "requirements/full.txt"),
        (["requirements_test.txt", "frequencies.txt", "docker/notes.txt"], "the imports"),
    ],
)
def test_a_list_of_another_name_is_found(tmp_path: Path, names: list[str], taken: str) -> None:
    needs = needs_of(tmp_path, **{name: f"einops==0.{at}\n" for at, name in enumerate(names)})
    assert needs.source == taken
    if taken in names:
        assert needs.requirements.lines == (f"einops==0.{names.index(taken)}",)


def test_a_list_named_after_the_scripts_folder_comes_first(tmp_path: Path) -> None:
    names = ("requirements/base.txt", "requirements/client.txt", "requirements/server.txt", "client/main.py")
    write_files(tmp_path, dict.fromkeys(names, "einops"))
    needs = project_needs(tmp_path, ScriptFacts(), tmp_path / "client")
    assert needs.source == "requirements/client.txt"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("base = ['a']\nmore = base + ['b>1']\nsetup(install_requires=more)", ("a", "b>1")),
        ("deps = {'torch': 'torch>=1.9', 'x': 'x'}\nsetup(install_requires=[deps['torch']])", ("torch>=1.9",)),
        (
            "_deps = ['torch>=1.9', 'numpy']\ndeps = {b: a for a, b in f(_deps)}\n"
            "setup(install_requires=[deps['numpy'], *deps_list('torch')])",
            ("numpy", "torch>=1.9"),
        ),
        ("args = dict(install_requires=['a'])\nsetup(name='x', **args)", ("a",)),
        ("def required():\n    return ['a', 'b']\nsetup(install_requires=required())", ("a", "b")),
        ("def read(name):\n    return open(name)\nsetup(install_requires=read('lists/own.txt'))", ("einops==0.3",)),
        ("wanted = open('lists/own.txt').read().splitlines()\nsetup(install_requires=wanted)", ("einops==0.3",)),
        ("wanted = wanted + ['a']\nsetup(install_requires=wanted)", None),
        ("setup(install_requires=compute())", None),
        ("setup(install_requires=open('gone.txt').read())", None),
    ],
)
def test_setup_py_is_evaluated_as_far_as_names_go(tmp_path: Path, source: str, lines: tuple[str, ...] | None) -> None:
    setup = f"from setuptools import setup\n{source}\n"
    write_files(tmp_path, {"lists/own.txt": "# ours\neinops==0.3\n", "setup.py": setup})
    declared = read_setup(tmp_path / "setup.py")
    assert (declared.lines if declared else None) == lines


def test_a_pipfile_is_a_list(tmp_path: Path) -> None:
    text = '[packages]\neinops = "==0.3"\nrich = {version = ">=13", extras = ["jupyter"]}\nown = {path = "."}\n'
    needs = needs_of(tmp_path, Pipfile=text + '[requires]\npython_version = "3.11"\n')
    assert needs.requirements.lines == ("einops==0.3", "rich[jupyter]>=13")
    assert (needs.source, str(needs.python)) == ("Pipfile", "==3.11.*")


README = """# A net

Install it:

```sh
$ pip install einops==0.3 torch==1.4.0 "rich>=13"  # the versions that we used
mim install mmengine==0.10
conda install -c conda-forge scikit-learn=1.2
pip install git+https://github.com/someone/strangenet.git
pip install -e . $EXTRA
```
"""


def test_the_readmes_commands_are_evidence_for_what_is_imported(tmp_path: Path) -> None:
    imports = ("einops", "mmengine", "sklearn", "strangenet", "torch", "nobodys")
    needs = needs_of(tmp_path, imports, **{"README.md": README})
    assert set(needs.requirements.lines) == {
        *("einops==0.3", "mmengine==0.10", "scikit-learn==1.2.*", "numpy<2", "torch", "nobodys"),
        "git+https://github.com/someone/strangenet.git",
    }
    assert "README.md:6 installs einops==0.3" in needs.reason
    assert [warning for warning in needs.warnings if "guess" in warning] == [
        "nobodys is a guess: the target imports nobodys, and seatrial does not know its package"
    ]


def test_a_package_that_a_readme_installs_by_a_name_without_wheels_keeps_the_name_with_them(tmp_path: Path) -> None:
    readme = "```\npip3 install chainer cupy sklearn\n```\n"
    lines = needs_of(tmp_path, ("chainer", "cupy", "sklearn"), **{"README.md": readme}).requirements.lines
    assert {"chainer", "cupy-cuda12x", "scikit-learn"} <= {*lines} and not {"cupy", "sklearn"} & {*lines}


def test_a_dockerfile_comes_before_a_readme_and_a_list_before_both(tmp_path: Path) -> None:
    files = {"README.md": README, "Dockerfile": "FROM x\nRUN apt-get update && \\\n  pip install einops==0.5\n"}
    needs = needs_of(tmp_path, ("einops",), **files)
    assert needs.requirements.lines == ("einops==0.5",)
    assert "Dockerfile:3 installs einops==0.5" in needs.reason
    needs = needs_of(tmp_path, ("einops", "sklearn"), **{"requirements.txt": "einops==0.7\n"})
    assert needs.requirements.lines == ("einops==0.7", "scikit-learn==1.2.*", "numpy<2")
    assert "einops==0.5" not in needs.reason
    assert "README.md:8 installs scikit-learn==1.2.*" in needs.reason


def test_a_part_of_torch_takes_no_release_of_torch_from_a_page(tmp_path: Path) -> None:
    files = {"README.md": "conda install pytorch==1.11.0\n", "requirements.txt": "functorch\ntorch==2.0.0\n"}
    needs = needs_of(tmp_path, ("functorch", "torch"), **files)
    assert needs.guessed["functorch"].other == "torch"


def test_a_folder_of_the_project_in_a_list_is_the_projects_own(tmp_path: Path) -> None:
    lines = "einops\n./libs/ops\n-e libs/ops[cuda]\n"
    files = {"libs/ops/setup.py": "from setuptools import setup\nsetup(name='ops')\n", "requirements.txt": lines}
    assert needs_of(tmp_path, **files).requirements.lines == ("einops",)
    with pytest.raises(ConfigError, match=r"requirements\.txt:1: '\./gone' installs from a folder"):
        needs_of(tmp_path, **{"requirements.txt": "./gone\n"})


def test_a_configuration_and_a_link_out_of_the_project_are_no_conda_lists(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("dependencies:\n- six\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/env_gpu.yaml").symlink_to(tmp_path / "outside.yaml")
    needs = needs_of(tmp_path / "project", **{"env_all.yaml": "defaults:\n- a\ndependencies:\n  foo: 1\n"})
    assert needs.source == "the imports"
    needs = needs_of(tmp_path / "project", **{"env_all.yaml": "dependencies:  # of conda\n\n  # two\n  - six\n"})
    assert needs.source == "env_all.yaml"


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": '"""Train.\n\npip install -r requirements-dev.txt\n"""\n'},
        {"train.py": "", "README.md": "```\npip install -r requirements-dev.txt\npython train.py --epochs 2\n```\n"},
    ],
)
def test_the_list_that_the_target_or_its_command_names_comes_first(tmp_path: Path, files: dict[str, str]) -> None:
    lists = {"requirements.txt": "fastapi\n", "requirements-dev.txt": "-r requirements.txt\neinops==0.3\n"}
    write_files(tmp_path, {**files, **lists})
    needs = project_needs(tmp_path, ScriptFacts(), tmp_path, file=tmp_path / "train.py")
    assert (needs.source, needs.requirements.lines) == ("requirements-dev.txt", ("fastapi", "einops==0.3"))


def test_an_address_stands_for_the_module_of_its_name_alone(tmp_path: Path) -> None:
    address = "git+https://github.com/keras-team/keras-contrib.git"
    page = f"* keras=2.2.4\n  * pip install {address}\n"
    needs = needs_of(tmp_path, ("keras", "keras_contrib"), **{"README.md": page})
    assert set(needs.requirements.lines) == {"keras", address}


@pytest.mark.parametrize("line", ["git+https://github.com/luyug/GradCache", "grad_cache @ git+https://x.org/luyug/g"])
def test_a_requested_address_ends_the_search_for_the_module_of_its_name(tmp_path: Path, line: str) -> None:
    script = ScriptFacts(imports=("grad_cache",), where={"grad_cache": "train.py:1"})
    assert project_needs(tmp_path, script, tmp_path).guessed
    needs = project_needs(tmp_path, script, tmp_path, (line,))
    assert not (needs.guessed or needs.warnings or needs.requirements.lines)


def test_the_plan_selects_the_build_in_place_of_an_index_of_one_build(tmp_path: Path) -> None:
    listed = "--extra-index-url https://download.pytorch.org/whl/cpu\ntorch>=2.1\n"
    assert not needs_of(tmp_path, **{"requirements.txt": listed}).requirements.options


@pytest.mark.parametrize(
    ("page", "named"),
    [
        ("# Requirements\n[PyTorch](https://x.org/) 1.6.0\n", {"torch": "1.6.0"}),
        ("# Setup\n| numpy | 1.19.2 |\n| **sklearn**: v0.24 |\n", {"numpy": "1.19.2", "scikit-learn": "0.24"}),
        ("Tested on Python=3.8, Pytorch=1.12.1+cu116.", {"python": "3.8", "torch": "1.12.1"}),
        ("# Environment\n```\n# a comment\ntorch==1.8.0\n```\n", {"torch": "1.8.0"}),
        ("# Install\nPython 3.8+, torch>=1.7, numpy 1.19 or later, scipy 1.5-1.7\n", {}),
        ("# Install\nPython 3.6 이상, torch 1.8 或更高\nscipy 1.5 o superior\nnumpy 1.19 +\n", {}),
        ("# Install\nat least torch 1.8\nnumpy 2.0 is not supported\nsince scipy 1.5\n", {}),
        ("# Install\ntorch 1.8.0 on Ubuntu 18.04 & numpy 1.19\n", {"torch": "1.8.0", "numpy": "1.19"}),
        ("# Install\ntorch 1.8.0\n# Or\nInstall torch 1.10.0\n", {}),
        ("# Results\ntorch 1.8.0: 93.1\n", {}),
        ("# Install\npytorch/pytorch:1.10.0, torch-1.8.0-cp37.whl, torch 1.8.0a0\n", {}),
    ],
)
def test_releases_that_a_page_names(tmp_path: Path, page: str, named: dict[str, str]) -> None:
    needs = needs_of(tmp_path, **{"README.md": page})
    assert {name: release for name, (release, _) in needs.named.items()} == named
