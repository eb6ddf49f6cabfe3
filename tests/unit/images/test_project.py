from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.imports import packages_of_imports
from seatrial.images.requirements.pip_format import Needs
from seatrial.images.requirements.project import LOCK, project_needs
from seatrial.job.script import ScriptFacts
from tables import cases


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


@cases("text", "message")
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


def test_environment_yml(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text(
        "name: x\ndependencies:\n  - python=3.10\n  - pytorch\n  - pip:\n    - einops>=0.8\n"
    )
    found = needs_of(tmp_path, "torch", "einops")
    assert (found.requirements.lines, str(found.python)) == (("torch", "einops>=0.8"), "==3.10.*")
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
    assert found.requirements.lines == ("Pillow==9.3.0", "opencv-python", "wandb", "mpi4py", "torchvision", "mpich")
    assert "the target also imports mpi4py (imported), torchvision" in found.choice.reason


def test_a_listed_package_provides_no_other_of_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch\nlightning-utilities\ntensorboard\nnumpy-quaternion\npycrypto\n")
    imported = ("torch", "torchvision", "torchmetrics", "lightning", "tensorboardX", "numpy", "Crypto")
    more = needs_of(tmp_path, *imported).requirements.lines[5:]
    assert more == ("lightning", "numpy", "tensorboardX", "torchmetrics", "torchvision")


@cases("listed", "added")
def test_gym_gets_the_numpy_that_it_works_with(tmp_path: Path, listed: str, added: list[str]) -> None:
    (tmp_path / "requirements.txt").write_text(listed + "\n")
    assert list(lines_of(tmp_path)[len(listed.splitlines()) :]) == list(added)


def test_a_script_inside_of_the_package_that_it_imports(tmp_path: Path) -> None:
    package = tmp_path / "netlab"
    package.mkdir()
    (package / "__init__.py").touch()
    facts = script(imports=("netlab", "torch"), where={"netlab": "fit.py:2"}, framework="torch", modules=())
    found = project_needs(package, facts, package)
    assert found.requirements.lines == ("torch",)
    assert found.warnings == (
        "fit.py:2 imports netlab, which is this folder: Python finds it from the folder above alone; "
        "seatrial run -C .. -m netlab.fit",
    )


def test_hashes_stay_complete(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.0.0 --hash=sha256:" + "0" * 64 + "\n")
    assert len(lines_of(tmp_path, "numpy", "yaml")) == 1


@cases("name", "package")
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


def test_modules_of_python_itself_are_no_packages_in_a_list_either(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "numpy\nmath\npickle\nlogging==0.4.9.6\ndataclasses; python_version < '3.7'\n"
    )
    needs = needs_of(tmp_path, "numpy")
    assert needs.requirements.lines == ("numpy", "dataclasses; python_version < '3.7'")
    assert needs.warnings == (
        "requirements.txt lists math, pickle, logging==0.4.9.6, modules of Python itself: left out, as the package "
        "index has no such package, or another's",
    )


@pytest.mark.parametrize("name", ["wandb", "tensorflow", "datasets"])
def test_a_folder_of_outputs_or_of_examples_hides_no_package(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "mnist.py").touch()
    assert lines_of(tmp_path, name) == (name,)
    (tmp_path / name / "__init__.py").touch()
    assert lines_of(tmp_path, name) == ()
    (tmp_path / "my_own_things").mkdir()
    assert lines_of(tmp_path, "my_own_things") == ()


def test_the_list_nearest_to_the_script(tmp_path: Path) -> None:
    example = tmp_path / "examples" / "tune"
    example.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("torch==2.9.0\nnumpy<3\nsphinx\ntransformers\nscipy==1.16.0\n")
    (example / "requirements.txt").write_text("git+https://example.com/huggingface/transformers\nscipy\nwandb\n")
    script = ScriptFacts(imports=("torch", "numpy", "transformers", "scipy"))
    needs = project_needs(tmp_path, script, example)
    assert needs.source == "examples/tune/requirements.txt"
    assert needs.requirements.lines == (
        "git+https://example.com/huggingface/transformers", "scipy", "wandb", "torch==2.9.0", "numpy<3",
    )  # fmt: skip
    assert needs.reason == (
        "examples/tune/requirements.txt is the nearest to the script; requirements.txt lists torch==2.9.0, numpy<3"
    )
    assert project_needs(tmp_path, script, tmp_path / "examples").source == "requirements.txt"
    assert project_needs(tmp_path / "examples", script, tmp_path).source == "the imports"  # a script elsewhere


def test_lists_in_a_folder_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "requirements.txt").write_text("-r base.txt\nscipy\n")
    (tmp_path / "requirements" / "base.txt").write_text("numpy<2\n")
    needs = needs_of(tmp_path, "numpy")
    assert (needs.source, needs.requirements.lines) == ("requirements/requirements.txt", ("numpy<2", "scipy"))


EXPORTED = """# This file may be used to create an environment using:
# $ conda create --name <env> --file <this file>
# platform: linux-64
_libgcc_mutex=0.1=main
absl-py=0.9.0=pypi_0
cudatoolkit=10.1.243=h6bb024c_0
numpy=1.18.1=py37h4f9e942_0
opencv=3.4.2=py37h6fd60c2_1
python=3.9.6=h0371630_2
pytorch=1.4.0=py3.7_cuda10.1.243_cudnn7.6.3_0
"""


def test_a_requirements_txt_that_conda_wrote(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(EXPORTED)
    found = needs_of(tmp_path, "torch")
    assert found.requirements.lines == (
        "absl-py==0.9.0",
        "numpy==1.18.1",
        "opencv-python-headless==3.4.2.*",
        "torch==1.4.0",
    )
    assert found.python.contains("3.9.1") and not found.python.contains("3.10.1")


def test_one_equals_sign_is_a_mistake_of_pips_format(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch=2.3.0\nsmplx-toolkit=0.1.28\n")
    with pytest.raises(ConfigError, match=r"requirements\.txt:1") as refused:
        needs_of(tmp_path, "torch")
    assert refused.value.cause == "use == instead of ="


def test_a_list_that_is_a_link_within_the_project(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text("scipy\n")
    (tmp_path / "sub/requirements.txt").symlink_to("../requirements.txt")
    found = project_needs(tmp_path, ScriptFacts(imports=("scipy",)), tmp_path / "sub")
    assert found.requirements.lines == ("scipy",)


def test_one_line_of_pip_and_it_is_pips(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(EXPORTED + "tqdm\n")
    with pytest.raises(ConfigError, match=r"requirements\.txt:4"):
        needs_of(tmp_path, "torch")


def test_a_list_by_the_name_that_web_interfaces_have_for_it(tmp_path: Path) -> None:
    (tmp_path / "environment.yaml").write_text("dependencies:\n  - python=3.10\n  - packaging\n")
    (tmp_path / "requirements_versions.txt").write_text("gradio==3.41.2\n")
    needs = needs_of(tmp_path, "torch")
    assert needs.requirements.lines[:1] == ("gradio==3.41.2",) and needs.source == "requirements_versions.txt"


@pytest.mark.parametrize("name", ["env.yml", "conda.yaml", "conda_environment.yaml", "conda-env.yml"])
def test_an_environment_by_another_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("dependencies:\n  - pytorch=1.11\n")
    assert needs_of(tmp_path, "torch").requirements.lines == ("torch==1.11.*",)


def test_what_conda_would_install_and_pip_has(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("setup(install_requires=['torch'])\n")
    (tmp_path / "environment.yml").write_text(
        "dependencies:\n  - python=3.10.4\n  - pip\n  - cudatoolkit=11.3\n  - ffmpeg\n"
        "  - conda-forge::pillow=9.2=py310_0\n"
        "  - pytorch>=1.13, <2.2\n  - torchvision = 0.16\n  - opencv\n  - scipy 1.11.1\n  - einops==0.6.0\n"
        "  - tqdm=4.64|4.65\n  - pip:\n    - einops==0.7.0\n    - -e .\n    - -e git+https://example.com/a#egg=a\n"
    )
    needs = needs_of(tmp_path, "torch")
    assert needs.requirements.lines == (
        "pillow==9.2.*", "torch<2.2,>=1.13", "torchvision==0.16.*", "opencv-python-headless", "scipy==1.11.1", "tqdm",
        "einops==0.7.0", "git+https://example.com/a#egg=a",
    )  # fmt: skip
    assert (needs.source, str(needs.python)) == ("environment.yml", "==3.10.*")


def test_an_environment_yml_has_pips_options_and_other_lists(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "more.txt").write_text("tqdm  # bars\n-c pins.txt\n")
    (tmp_path / "requirements" / "pins.txt").write_text("tqdm<5\n")
    environment = tmp_path / "environment.yml"
    listed = "--extra-index-url https://download.pytorch.org/whl/cu118", "-r requirements/more.txt", "einops"
    environment.write_text("dependencies:\n  - pip:\n" + "".join(f"    - {line}\n" for line in listed))
    found = needs_of(tmp_path, "einops").requirements
    assert (found.lines, found.constraints, found.options) == (("tqdm", "einops"), ("tqdm<5",), listed[:1])
    environment.write_text("dependencies:\n  - pip:\n    - -r requirements/none.txt\n")
    with pytest.raises(ConfigError, match=r"^environment.yml:3: requirements/none.txt does not exist"):
        needs_of(tmp_path, "einops")


def test_a_part_of_a_package_that_is_a_package_of_its_own(tmp_path: Path) -> None:
    modules = {"orbax": "train.py:1", "orbax.export": "train.py:1"}
    needs = project_needs(tmp_path, ScriptFacts(imports=("orbax",), modules=modules), tmp_path)
    assert set(needs.requirements.lines) == {"orbax-checkpoint", "orbax-export"}


def test_a_module_that_lies_elsewhere_in_the_project_is_no_strangers_package(tmp_path: Path) -> None:
    (tmp_path / "third_party" / "roi_layers").mkdir(parents=True)
    (tmp_path / "third_party" / "roi_layers" / "__init__.py").touch()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").touch()
    (tmp_path / "net" / "fancy_pack.py").touch()  # net.fancy_pack, which is another module
    needs = needs_of(tmp_path, "roi_layers", "fancy_pack")
    assert needs.requirements.lines == ("fancy-pack",)
    assert needs.warnings[1] == (
        "the target imports roi_layers, which lies in the project's third_party/: unless the script adds that folder "
        "to sys.path, run with -e PYTHONPATH=third_party"
    )


def test_folders_that_a_script_needs_are_one_variable(tmp_path: Path) -> None:
    for name in ("core_lib", "data_lib"):
        (tmp_path / "packages" / name / "src" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "src" / name / "__init__.py").touch()
    script = ScriptFacts(imports=("core_lib", "data_lib"), python_path=("lib",))
    [warning] = project_needs(tmp_path, script, tmp_path).warnings
    assert warning.endswith("run with -e PYTHONPATH=lib:packages/core_lib/src:packages/data_lib/src")


MEMBER = """
[project]
name = "trainer"
dependencies = ["core-lib", "shapes", "click"]
[project.scripts]
trainer = "trainer.cli:main"
"""


@pytest.mark.parametrize("place", ["the workspace", "the member"])
def test_workspace_member_is_never_looked_up_on_an_index(tmp_path: Path, place: str) -> None:
    """The index has a core-lib, and it is a stranger's."""
    sources = '[tool.uv.sources]\ncore-lib = { workspace = true }\nshapes = { git = "https://host/s", tag = "v1" }\n'
    root = '[project]\nname = "lab"\n[tool.uv.workspace]\nmembers = ["packages/*"]\n'
    core, trainer = tmp_path / "packages" / "core", tmp_path / "packages" / "trainer"
    (core / "src").mkdir(parents=True)
    trainer.mkdir()
    (core / "pyproject.toml").write_text('[project]\nname = "Core_Lib"\n')
    (tmp_path / "pyproject.toml").write_text(root + (sources if place == "the workspace" else ""))
    (trainer / "pyproject.toml").write_text(MEMBER + (sources if place == "the member" else ""))
    needs = needs_of(trainer, "core_lib", "shapes", "click")
    assert needs.requirements.lines == ("shapes @ git+https://host/s@v1", "click")
    assert needs.warnings == (
        "the target imports core_lib, which pyproject.toml takes from a folder outside of the project, and not from an "
        "index: run where both are: seatrial run -C .. -e PYTHONPATH=core/src:trainer …",
    )


def test_folder_of_poetry_is_never_looked_up_on_an_index(tmp_path: Path) -> None:
    project = tmp_path / "app"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[tool.poetry.dependencies]\ntabulate = "^0.9"\ncore-lib = { path = "../core", develop = true }\n'
    )
    needs = needs_of(project, "core_lib", "tabulate")
    assert needs.requirements.lines == ("tabulate<0.10,>=0.9",)
    assert needs.warnings[0].endswith(
        "from a folder outside of the project, and not from an index: that folder is not there"
    )


def test_what_an_empty_submodule_may_have_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / ".gitmodules").write_text('[submodule "taming"]\n\tpath = third party/taming\n\turl = https://h/t\n')
    folder = tmp_path / "third party" / "taming"
    folder.mkdir(parents=True)
    needs = needs_of(tmp_path, "taming_model", "humanize")
    assert needs.requirements.lines == ("humanize",)
    assert needs.warnings == (
        "the target imports taming_model, which is not here, and the git submodule third party/taming is empty: "
        "git submodule update --init --recursive",
    )
    (folder / "setup.py").touch()
    assert needs_of(tmp_path, "taming_model", "humanize").requirements.lines == ("humanize", "taming-model")


@cases("text", "lines")
def test_group_decides_about_an_imported_package(tmp_path: Path, text: str, lines: tuple[str, ...]) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert needs_of(tmp_path, "torch", "humanize").requirements.lines == lines


def test_a_module_that_installing_the_project_writes(tmp_path: Path) -> None:
    needs = project_needs(tmp_path, ScriptFacts(missing={".version": "esr/__init__.py:6"}), tmp_path)
    assert needs.warnings == (
        "esr/__init__.py:6 imports .version, which is not in the project: if installing the project writes or compiles "
        "it, do that first with pip install -e .",
    )


@cases("listed", "lines")
def test_tensorflow_for_other_systems_is_the_one_for_linux(tmp_path: Path, listed: str, lines: tuple[str, ...]) -> None:
    (tmp_path / "requirements.txt").write_text(listed)
    found = needs_of(tmp_path, "tensorflow")
    assert found.requirements.lines == lines
    assert ("other systems than Linux" in found.reason) == (";" not in listed)


def test_a_plug_in_of_another_system_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("jax\njax-metal==0.1.1\n")
    found = needs_of(tmp_path, "jax")
    assert found.requirements.lines == ("jax",) and found.reason.endswith("other systems than Linux, is left out")


def test_accelerate_is_for_torch_alone(tmp_path: Path) -> None:
    for framework, lines in (("torch", ("torch", "transformers", "accelerate")), ("jax", ("jax", "transformers"))):
        script = ScriptFacts(imports=(framework, "transformers"), framework=framework)
        assert project_needs(tmp_path, script, tmp_path).requirements.lines == lines


def test_what_windows_alone_has_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\npywin32==306\npywinpty==2.0.13\n")
    needs = needs_of(tmp_path, "numpy")
    assert needs.requirements.lines == ("numpy",)
    assert (
        "pywin32==306 and pywinpty==2.0.13, for old releases or other systems than Linux, are left out" in needs.reason
    )


@pytest.mark.parametrize(
    ("line", "python"),
    [("python==3.8", "==3.8.*"), ("python==3.10.4", "==3.10.*"), ("Python >= 3.9", ">=3.9"), ("python", "")],
)
def test_a_list_that_names_python_asks_for_that_python(tmp_path: Path, line: str, python: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\nnumpy\n")
    needs = needs_of(tmp_path, "numpy")
    assert (needs.requirements.lines, str(needs.python)) == (("numpy",), python)
    assert needs.warnings == (
        f"requirements.txt lists {line}, which pip cannot install: taken for the Python that it asks for",
    )
