"""An archive with bytecode next to its sources: nothing is compiled at the start, unless another Python reads it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agent_process import FLOOR
from seatrial.system import agent_archive

PROGRAM = """
import json, sys
seen = []
sys.addaudithook(lambda event, about: event == "compile" and seen.append(str(about[1])))
sys.path.insert(0, sys.argv[1])
import seatrial.agent.supervisor
print(json.dumps([name for name in seen if name.endswith(".py")]))
"""


def compiled_at_the_start(archive: Path, python: str = sys.executable) -> list[str]:
    done = subprocess.run([python, "-I", "-S", "-c", PROGRAM, str(archive)], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return names


def test_the_same_python_compiles_nothing(tmp_path: Path) -> None:
    plain, both = agent_archive.build(tmp_path), agent_archive.build(tmp_path, compiled=True)
    assert plain != both and len(compiled_at_the_start(plain)) > 50
    assert compiled_at_the_start(both) == []
    assert agent_archive.build(tmp_path, compiled=True) == both and both.stat().st_size < 2 << 20
    names = zipfile.ZipFile(both).namelist()
    assert set(zipfile.ZipFile(plain).namelist()) == {name for name in names if not name.endswith(".pyc")}


@pytest.mark.skipif(FLOOR is None, reason="no Python 3.8 here")
def test_the_oldest_python_reads_it(tmp_path: Path) -> None:
    assert FLOOR is not None
    assert len(compiled_at_the_start(agent_archive.build(tmp_path, compiled=True), FLOOR)) > 50
