"""The Python that comes along with the agent: complete, and content with its own folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.job.in_container import CONTAINER_PYTHON, PYTHON_COMMAND
from seatrial.system import agent_archive, interpreter_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux")

#: The oldest and newest versions there are here, and a distribution's own build.
PYTHONS = [
    *(str(path) for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0234].*/bin/python3"))),
    *filter(None, [shutil.which("python3.11", path="/usr/bin")]),
]

#: Loads every extension module, resolves names and users, and prints what is mapped.
LOADS = """
import ctypes, glob, importlib, locale, os, pwd, socket, sys
sys.path.insert(0, sys.argv[1])
"ä".encode("idna"), "a".encode("latin-1")
for path in glob.glob(sys.prefix + "/lib*/python3*/lib-dynload/*.so"):
    importlib.import_module(os.path.basename(path).partition(".")[0])
for name in ("agent.__main__", "agent.observer", "agent.tune.driver", "findings.match", "probe.gpu"):
    importlib.import_module("seatrial." + name)
looks = [lambda: locale.setlocale(locale.LC_ALL, ""), lambda: pwd.getpwnam("nobody")]
for look in [*looks, lambda: socket.getaddrinfo("no.such.host.invalid", 80)]:
    try:
        look()
    except (OSError, KeyError, locale.Error):
        pass
ctypes.CDLL("libgcc_s.so.1")
print(*sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}), sep="\\n")
"""


def started(folder: Path, *words: str, **env: str) -> str:
    command = [word.replace(CONTAINER_PYTHON, str(folder)) for word in PYTHON_COMMAND]
    done = subprocess.run([*command, "-I", "-S", *words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", PYTHONS)
def test_a_copy_loads_everything_of_its_own_and_nothing_from_elsewhere(python: str, tmp_path: Path) -> None:
    archive, folder = agent_archive.build(tmp_path), tmp_path / "copy"
    program = [python, "-I", "-S", interpreter_program.__file__, str(archive), str(folder)]
    subprocess.run(program, check=True, capture_output=True)
    env = {"LANG": "de_DE.ISO-8859-1", "LD_LIBRARY_PATH": "/usr/lib", "PYTHONHOME": "/nowhere"}
    mapped = started(folder, "-c", LOADS, str(archive), **env).splitlines()
    assert mapped and all(path.startswith(f"{folder}/") for path in mapped), mapped


def test_a_copy_is_made_once_and_again_when_a_library_has_changed(tmp_path: Path) -> None:
    archive = agent_archive.build(tmp_path)
    first = agent_archive.build_interpreter(tmp_path, archive)
    assert first is not None and first.words.startswith("CPython 3.") and first.folder.name[7:] in first.words
    assert first.folder.stat().st_mode & 0o777 == 0o755
    made = first.folder.stat().st_ctime_ns
    assert agent_archive.build_interpreter(tmp_path, archive) == first and first.folder.stat().st_ctime_ns == made
    index = next(tmp_path.glob("python-*.json"))
    kept = json.loads(index.read_bytes())
    changed = {path: [0, size] for path, (_, size) in kept["sources"].items()}
    index.write_text(json.dumps({**kept, "sources": changed}))
    assert agent_archive.build_interpreter(tmp_path, archive) == first  # the content is the same
    assert json.loads(index.read_bytes()) == kept
    assert not list(tmp_path.glob(".python-*"))
