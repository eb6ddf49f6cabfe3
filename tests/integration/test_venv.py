"""The managed virtual environment: made once, made anew when broken, and nothing left of a failed one."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seatrial.backends.local import COMPLETE, ensure_venv
from seatrial.errors import EngineError

PYTHON = Path(sys.executable)

pytestmark = pytest.mark.slow  # each environment costs 5 to 15 s


@pytest.fixture
def wheels(tmp_path):
    """A folder with one wheel, ``trialdep 1.0``, that installs a module and a command."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    files = {
        "trialdep.py": "def main():\n    print('from the venv')\n",
        "trialdep-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: trialdep\nVersion: 1.0\n",
        "trialdep-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "trialdep-1.0.dist-info/entry_points.txt": "[console_scripts]\ntrialdep = trialdep:main\n",
    }
    files["trialdep-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / "trialdep-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return folder


def test_it_is_made_once_and_its_commands_work(tmp_path, wheels):
    requirements = ["--no-index", f"--find-links {wheels}", "trialdep==1.0"]
    lines = []
    interpreter = ensure_venv(tmp_path / "venvs", requirements, PYTHON, lines.append)
    assert any("trialdep" in line for line in lines)
    ran = subprocess.run([interpreter.parent / "trialdep"], capture_output=True, text=True, check=True)
    assert ran.stdout == "from the venv\n"

    lines.clear()
    assert ensure_venv(tmp_path / "venvs", requirements, PYTHON, lines.append) == interpreter
    assert lines == []

    (interpreter.parent.parent / COMPLETE).unlink()  # as a power cut in the middle would leave it
    assert ensure_venv(tmp_path / "venvs", requirements, PYTHON, lines.append) == interpreter
    assert lines != []


def test_a_failed_one_names_the_reason_and_leaves_nothing(tmp_path, wheels):
    requirements = ["--no-index", f"--find-links {wheels}", "no-such-package"]
    with pytest.raises(EngineError, match="no-such-package"):
        ensure_venv(tmp_path / "venvs", requirements, PYTHON, lambda line: None)
    assert [path for path in (tmp_path / "venvs").iterdir() if path.is_dir()] == []
