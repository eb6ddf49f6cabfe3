"""The way from ``main`` to the engine's program: at most 15 functions of ours, each short, all in ARCHITECTURE.md.

A profiler of the interpreter takes the stack where ``docker container run`` is called. The engine is a program on PATH
that answers as Docker 28.5 does and records its arguments; it starts nothing, so the run ends with the engine's error.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

MOST_FUNCTIONS, MOST_LINES = 15, 60

ENGINE = """#!{python}
import json, sys
words = sys.argv[1:]
open({log!r}, "a").write(json.dumps(words) + "\\n")
if "info" in words:
    print(open({info!r}).read())
elif "context" in words:
    print(json.dumps({{"Endpoints": {{"docker": {{"Host": "unix:///run/fake.sock"}}}}}}))
elif "inspect" in words:
    print(json.dumps([{{"Id": "sha256:" + 64 * "0", "RepoDigests": [], "Config": {{"Env": [], "Labels": {{}}}}}}]))
elif "--cidfile" in words:
    sys.exit("docker: Error response from daemon: this engine records and starts nothing")
"""

PROGRAM = """
import json, os, sys
ours = os.path.join("src", "seatrial")
running, returned, found = [], set(), {}

def name(code):
    return code.co_filename.partition(ours + os.sep)[2], getattr(code, "co_qualname", code.co_name), code.co_firstlineno

def profile(frame, event, argument):
    code = frame.f_code
    if event == "return" and ours in code.co_filename and not found:
        returned.add(name(code))
    elif event == "call" and code.co_name == "Popen.__init__".split(".")[1] and "subprocess" in code.co_filename:
        words = frame.f_locals.get("args")
        if not found and isinstance(words, list) and "--cidfile" in words:
            stack = []
            while frame is not None:
                if ours in frame.f_code.co_filename and name(frame.f_code) not in stack:
                    stack.append(name(frame.f_code))
                frame = frame.f_back
            found["stack"] = stack[::-1]

from seatrial.cli import main
sys.setprofile(profile)
try:
    main()
finally:
    sys.setprofile(None)
    json.dump({**found, "returned": len(returned)}, open(os.environ["FOUND"], "w"))
"""


def length(file: str, line: int) -> int:
    """Return the lines of the function that begins there, its decorators aside."""
    lines = (ROOT / "src" / "seatrial" / file).read_text().splitlines()[line - 1 :]
    body = next(at for at, text in enumerate(lines) if re.match(r"\s*(async )?def ", text))
    return len(inspect.getblock([text + "\n" for text in lines[body:]]))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("path")
    log, info = folder / "argv.jsonl", ROOT / "tests" / "recorded" / "docker-info-28.5.2.json"
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker"
    program.write_text(ENGINE.format(python=sys.executable, log=str(log), info=str(info)))
    program.chmod(0o755)
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text("print('ready')\n")
    own = {"HOME": folder, "SEATRIAL_STATE": folder / "state", "FOUND": folder / "found.json"}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environ = {**{name: str(each) for name, each in own.items()}, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    argv = [sys.executable, "-c", PROGRAM, *["run", "train.py", "--on", "docker", "--gpus", "none", "--trust"]]
    ended = subprocess.run(argv, cwd=project, env=environ, capture_output=True, text=True, timeout=300)
    found = json.loads((folder / "found.json").read_text())
    assert "records and starts nothing" in ended.stderr, ended.stdout + ended.stderr
    return {**found, "argv": [json.loads(line) for line in log.read_text().splitlines()]}


def test_path_from_main_to_engine_is_short_and_documented(measured):
    stack = measured["stack"]
    lines = [f"{file}: {name} ({length(file, line)} lines)" for file, name, line in stack]
    print(*lines, f"{measured['returned']} functions returned before", sep="\n")
    assert "--cidfile" in measured["argv"][-1]
    assert len(stack) <= MOST_FUNCTIONS, lines
    assert all(length(file, line) <= MOST_LINES for file, _, line in stack), lines
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"^\| `([\w/.]+)` \| `([\w.]+)` \|", text, re.MULTILINE)
    if sys.version_info < (3, 11):  # code has no names of classes there
        named = [(file, name.rpartition(".")[2]) for file, name in named]
    assert [(file, name.rpartition("<locals>.")[2]) for file, name, _ in stack] == named
