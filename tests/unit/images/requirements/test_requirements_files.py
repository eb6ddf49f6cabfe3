from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.adjust import installable
from seatrial.images.requirements.pip_format import Needs, Requirements, read_requirements
from tables import cases


def read(folder: Path, text: str | bytes) -> Requirements:
    file = folder / "requirements.txt"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_requirements(file, folder)


def test_comments_blanks_and_continued_lines_go(tmp_path: Path) -> None:
    text = "# top\n\ntorch>=2.6  # the framework\nnumpy \\\n  >=1.26\nx @ https://e.org/x-1.whl#sha256=aa\n"
    text += "six==1.17.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    listed = ("torch>=2.6", "numpy >=1.26", "x @ https://e.org/x-1.whl#sha256=aa")
    assert read(tmp_path, text).lines == (*listed, "six==1.17.0 --hash=sha256:aa --hash=sha256:bb")


def test_markers_on_a_mac_are_those_of_a_linux_container() -> None:
    program = "import sys, platform, importlib, seatrial.images.requirements.pip_format as read\n"
    program += "sys.platform, platform.machine = 'darwin', lambda: 'arm64'\nread = importlib.reload(read)\n"
    program += "each = [f'x ; platform_machine == \"{name}\"' for name in ('x86_64', 'arm64')]\n"
    program += "print(read.MACHINE, [read.is_for(line, '3.11') for line in each])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "x86_64 [True, False]\n"


def test_included_files_and_constraints(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("numpy\n-r ../requirements.txt\n")
    (tmp_path / "pins.txt").write_text("numpy==2.0.0\n")
    found = read(tmp_path, "-r more/base.txt\n--constraint=pins.txt\ntorch\n--pre\n")
    assert found == Requirements(("numpy", "torch"), ("numpy==2.0.0",), ("--pre",))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_windows_encodings(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, "torch\r\nnumpy\r\n".encode(encoding)).lines == ("torch", "numpy")


@cases("option", "names_one")
def test_names_an_index(tmp_path: Path, option: str, names_one: bool) -> None:
    assert read(tmp_path, f"{option}\nsix\n").names_an_index is names_one


@cases("bad", "reason")
def test_a_bad_line_is_named(tmp_path: Path, bad: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, f"numpy\n\n{bad}\n")
    assert raised.value.message.startswith("requirements.txt:3: ")
    assert reason in raised.value.message
    assert "secret" not in raised.value.message.replace("a build secret", "")


def test_the_fix_for_a_missing_list_opens_the_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "numpy\n-r Lib/requirements.txt\n")
    edit, _, other = str(raised.value.run).partition("   # ")
    assert edit.startswith("${EDITOR:-vi} +2 ") and edit.endswith("requirements.txt")
    assert other == "or bring Lib/requirements.txt"


def test_files_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("-r requirements.txt\nnumpy\n")
    assert read(tmp_path, "-r base.txt\nsix\n").lines == ("numpy", "six")


@cases("line", "folder")
def test_a_folder_of_the_project_is_refused_with_advice(tmp_path: Path, line: str, folder: str) -> None:
    with pytest.raises(ConfigError, match="from a folder that is not in the image") as caught:
        read(tmp_path, line + "\n")
    assert caught.value.run == f"remove the line, and add PYTHONPATH={folder} to [env]; for a src layout {folder}/src"


FLASH = "flash_attn-2.6.3+cu123torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("line", "wanted", "pythons", "constraints"),
    [
        ("https://e.org/torch-2.4.0%2Bcu121-cp310-cp310-linux_x86_64.whl#sha256=aa", "torch==2.4.0+cu121", "", ()),
        ("torch @ https://e.org/torch-2.4.0-cp310-cp310-win_amd64.whl ; os_name > 'a'",
         "torch==2.4.0 ; os_name > 'a'", "", ()),
        ("https://e.org/numpy-1.26.4+label-cp310-cp310-macosx_11_0_arm64.whl", "numpy==1.26.4", "", ()),
        ("https://e.org/mine-1-py3-none-win_amd64.whl", "mine @ https://e.org/mine-1-py3-none-win_amd64.whl", "",
         ()),
        (f"https://e.org/{FLASH}", f"flash-attn @ https://e.org/{FLASH}", "<3.11,>=3.10", ("torch==2.4.*",)),
        (f"https://e.org/{FLASH};python_version=='3.10'",
         f"flash-attn @ https://e.org/{FLASH} ;python_version=='3.10'", "", ()),
        ("https://e.org/x-3-cp36-abi3-manylinux2014_x86_64.whl", "x @ https://e.org/x-3-cp36-abi3-manylinux2014_x86_64.whl",
         ">=3.6", ()),
        ("en @ https://e.org/en-3.7-py3-none-any.whl", "en @ https://e.org/en-3.7-py3-none-any.whl", "", ()),
    ],
)  # fmt: skip
def test_a_named_wheel_is_read(tmp_path, line, wanted, pythons, constraints):
    """A wheel by its address: name, release, system, Pythons, and the torch that it was compiled against."""
    (tmp_path / "requirements.txt").write_text(line + "\n")
    found = installable(Needs(read_requirements(tmp_path / "requirements.txt", tmp_path), "requirements.txt", ""))
    assert (found.requirements.lines, found.requirements.constraints) == ((wanted,), constraints)
    assert str(found.python) == pythons
