"""Modules that the project compiles: which setup.py makes them, how the image gets them, where Python finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from image_plans import planned, write_files
from seatrial.errors import ConfigError
from seatrial.images.dockerfile.context import sources_of
from seatrial.images.dockerfile.render import _FINDER, EXTENSIONS_AT
from seatrial.images.requirements.pip_format import Extension
from seatrial.job.model import Target
from seatrial.job.plan import ImagePlan
from seatrial.job.script import script_facts
from seatrial.stack.machine import parse_target

CUDA = "extension = CUDAExtension\nsetup(name='Ops', packages=['functions'], ext_modules=[extension('OpsCuda', [])])\n"
CYTHON = "from Cython.Build import cythonize\nsetup(name='align', ext_modules=cythonize('core.pyx'))\n"
PLAIN = "from setuptools import Extension\nm = Extension(name='grid_sub', sources=['w.cpp'])\nsetup(ext_modules=[m])\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "models/ops/setup.py": f"import torch\nfrom torch.utils.cpp_extension import CUDAExtension\n{CUDA}",
        "models/ops/src/ops.cu": "int x;",
        "models/ops/functions/__init__.py": "import OpsCuda\n",
        "align/setup.py": f"from setuptools import setup\n{CYTHON}",
        "align/__init__.py": "from .align.core import add\n",
        "align/core.pyx": "cpdef int add(int a): return a\n",
        "wrappers/sub/setup.py": f"from setuptools import setup\n{PLAIN}",
        "wrappers/sub/w.cpp": '#include "../utils/u.h"\n',
        "wrappers/utils/u.h": "int u;\n",
        "wrappers/other/setup.py": "from setuptools import *\nsetup(ext_modules=[Extension('other', [])])\n",
        "docs/setup.py": "from setuptools import setup\nsetup(name='OpsCuda')\n",
        "train.py": "import torch\nimport OpsCuda\nimport align\nimport wrappers.sub.grid_sub as sub\n",
    }
    write_files(tmp_path, files)
    return tmp_path


def plan(project: Path, *, gpus: bool) -> ImagePlan:
    return planned(project, cpu_only=not gpus, machine=parse_target("h100") if gpus else None).image


def test_what_the_target_imports_is_compiled_and_nothing_else(project: Path) -> None:
    image = plan(project, gpus=True)
    text = str(image.dockerfile)
    for folder in ("align", "models/ops", "wrappers/sub"):
        assert f"cd /build/{folder} && " in text
    assert "/build/wrappers/other" not in text and "/build/docs" not in text
    assert not any("OpsCuda" in warning or "guess" in warning or "missing" in warning for warning in image.warnings)
    assert {"extensions/wrappers/utils/u.h", "extensions/align/core.pyx"} <= image.context_texts.keys()
    assert "extensions/train.py" not in image.context_texts


def test_a_setup_that_names_a_package_which_the_project_lacks_does_not_make_it(project: Path) -> None:
    text = "from setuptools import setup\nsetup(name='detectron2', ext_modules=[CppExtension('detectron2._C', [])],"
    text += "package_dir={'detectron2.projects.x': 'projects/x'})\n"
    (project / "setup.py").write_text(text)
    (project / "train.py").write_text("import detectron2.config\n")
    warned = "train.py:1 imports detectron2, which is not installed"
    assert [each for each in plan(project, gpus=True).warnings if each.startswith(warned)]
    (project / "other" / "detectron2").mkdir(parents=True)
    (project / "setup.py").rename(project / "other" / "setup.py")
    assert not [each for each in plan(project, gpus=True).warnings if each.startswith(warned)]


def test_cuda_is_compiled_for_the_targets_gpus_with_nvcc(project: Path) -> None:
    text = str(plan(project, gpus=True).dockerfile)
    assert "TORCH_CUDA_ARCH_LIST='9.0'" in text
    assert "-devel-" in text.partition(" AS extensions")[0].rpartition("FROM ")[2]
    assert text.rpartition("\nFROM ")[2].startswith("packages\n")


def test_without_a_gpu_cuda_is_left_out_with_a_warning(project: Path) -> None:
    image = plan(project, gpus=False)
    assert "/build/models/ops" not in str(image.dockerfile) and "/build/align" in str(image.dockerfile)
    assert "models/ops/setup.py compiles CUDA code, which an image without a GPU has no compiler for" in str(
        image.warnings
    )


def test_another_source_is_another_image_and_another_script_is_not(project: Path) -> None:
    first = plan(project, gpus=False).tag
    (project / "train.py").write_text((project / "train.py").read_text() + "print(1)\n")
    assert plan(project, gpus=False).tag == first
    (project / "wrappers" / "utils" / "u.h").write_text("int v;\n")
    assert plan(project, gpus=False).tag != first


def test_data_of_an_extension_is_not_taken_for_sources(project: Path) -> None:
    (project / "align" / "huge.c").write_text("x" * 9_000_000)
    with pytest.raises(ConfigError, match=r"huge\.c is 9 MB|its sources are more than"):
        sources_of(project, [Extension("align", ("core",), cuda=False)])


def test_links_are_no_sources(project: Path) -> None:
    (project / "align" / "secret.h").symlink_to("/etc/passwd")
    assert not any("secret" in name for name in sources_of(project, [Extension("align", ("core",), cuda=False)]))


def test_python_finds_the_modules_under_the_names_of_the_project(tmp_path: Path) -> None:
    """The line is executed as site does for a .pth file: in a function, where names are local."""
    built, own = tmp_path / "built", tmp_path / "own"
    write_files(built, {name: f"name = {name!r}\n" for name in ("grid_sub.py", "align/core.py", "pkg/ops/net_cuda.py")})
    empty = dict.fromkeys(("wrappers/sub/w.txt", "pkg/__init__.py", "pkg/ops/__init__.py"), "")
    write_files(own, {**empty, "align/__init__.py": "from .align.core import name\n"})
    lines = _FINDER.replace("\\\\n", "\n").replace("\\n", "\n").replace(EXTENSIONS_AT, str(built)).splitlines()
    program = (
        f"import sys\nsys.path.append({lines[0]!r})\ndef site():\n    exec({lines[1]!r})\nsite()\n"
        "import wrappers.sub.grid_sub, align, pkg.ops.net_cuda\n"
        "print(wrappers.sub.grid_sub.name, align.name, pkg.ops.net_cuda.name)\n"
        "try:\n    import pkg.ops.gone\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=own, capture_output=True, text=True, check=False)
    assert ended.stdout == "grid_sub.py align/core.py pkg/ops/net_cuda.py\nNo module named 'pkg.ops.gone'\n", (
        ended.stderr
    )


JIT = "from torch.utils.cpp_extension import load_inline, load\n"


@pytest.mark.parametrize(
    ("source", "requirements", "evidence"),
    [
        (
            f"{JIT}load_inline('m', cpp_sources='', cuda_sources=code)",
            "torch",
            "train.py:2 load_inline(cuda_sources=…)",
        ),
        (f"{JIT}load('m', [f'{{here}}/m.cpp', os.path.join(here, 'm_kernel.cu')])", "torch", "train.py:2 m_kernel.cu"),
        (f"{JIT}load('m', ['m.cpp'])", "torch", None),
        ("print('m.cu')", "torch", None),
        ("import gsplat", "torch\ngsplat>=1.5", "gsplat>=1.5"),
        ("import gsplat", "torch\ngsplat==1.5.2+pt24cu124", None),
    ],
)
def test_nvcc_is_in_the_image_where_the_run_compiles_cuda(
    tmp_path: Path, source: str, requirements: str, evidence: str | None
) -> None:
    files = {"train.py": f"{source}\nimport torch\n", "requirements.txt": requirements}
    image, choices = planned(tmp_path, files, cpu_only=False, machine=parse_target("h100"))
    last = str(image.dockerfile).partition(" AS base")[0].rpartition("FROM ")[2]
    assert ("-devel-" in last) == (evidence is not None)
    if evidence is not None:
        [base] = [each for each in choices if each.what == "base image"]
        assert base.reason == f"the target compiles CUDA code when it runs ({evidence})"
        assert "g++" in str(image.dockerfile) and " AS builder" not in str(image.dockerfile)
    assert "-devel-" not in str(planned(tmp_path).image.dockerfile)


CYTHONIZED = "from setuptools import setup\nfrom Cython.Build import cythonize\nsetup(ext_modules=cythonize({}))\n"


@pytest.mark.parametrize(
    ("source", "setup", "line"),
    [
        ("fast.pyx", "['fast.pyx']", "import fast"),
        ("fast.pyx", "'*.pyx'", "import fast"),
        ("lib/fast.pyx", "['lib/fast.pyx']", "from lib.fast import f"),
        ("lib/fast.pyx", "['lib/*.pyx'], annotate=True", "from lib import fast"),
        ("lib/fast.pyx", "files()", "import lib.fast as fast"),
    ],
)
def test_cython_that_a_setup_compiles_in_place_is_compiled_in_the_image(
    tmp_path: Path, source: str, setup: str, line: str
) -> None:
    folder = source.rpartition("/")[0]
    files = {source: "def f(): return 1\n", f"{source[:-3]}c": "/* generated */", "train.py": f"import torch\n{line}\n"}
    files |= {f"{folder}/__init__.py": ""} if folder else {}
    with_setup = planned(tmp_path, {**files, "setup.py": CYTHONIZED.format(setup)}).image
    assert "build_ext --build-lib" in str(with_setup.dockerfile) and with_setup.warnings == ()
    (tmp_path / "setup.py").unlink()
    [(where, fix)] = script_facts(Target(kind="script", value="train.py"), tmp_path).missing.values()
    assert (where, fix) == ("train.py:2", f"cythonize -i {source}")


def test_pyximport_compiles_in_the_run_and_needs_a_compiler(tmp_path: Path) -> None:
    files = {"fast.pyx": "", "train.py": "import pyximport\npyximport.install()\nimport fast\n"}
    image, choices = planned(tmp_path, files)
    assert "cython" in "".join(image.context_texts.values()) and "g++" in str(image.dockerfile)
    assert image.warnings == () and any(each.what == "compiler" for each in choices)
