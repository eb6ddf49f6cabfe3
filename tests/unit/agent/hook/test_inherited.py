"""The target sees the user's own PYTHONPATH, and the processes that it starts still have the hook."""

import json
import os
import subprocess
import sys

import pytest

from agent_process import FLOOR
from seatrial.agent.hook import install

pythons = pytest.mark.parametrize("python", [p for p in (sys.executable, FLOOR) if p])

#: Prints its own PYTHONPATH and whether it is hooked; ``start`` runs it once more.
PROGRAM = """
import json, multiprocessing, os, subprocess, sys
SEEN = '''
import json, os, sys
print(json.dumps([os.environ.get("PYTHONPATH"), any(type(each).__name__ == "Finder" for each in sys.meta_path)]))
'''
def seen():
    exec(SEEN)
    sys.stdout.flush()
def main():
    child = [sys.executable, "-c", SEEN]
    CHANGE
    seen()
    START
    seen()
if __name__ == "__main__":
    main()
"""
STARTS = {
    "inherits": "subprocess.run(child)",
    "copy": "subprocess.run(child, env=os.environ.copy())",
    "made anew": "subprocess.run(child, env={**os.environ, 'RANK': '1'})",
    "shell": "os.system(subprocess.list2cmdline(child[:1]) + ' -c \"$SEEN\"')",
    "exec": "os.fork() or os.execve(child[0], child, dict(os.environ)); os.wait()",
    "the very object": "subprocess.run(child, env=os.environ)",
    "exec of the very object": "os.fork() or os.execve(child[0], child, os.environ); os.wait()",
    "spawned": "one = multiprocessing.get_context('spawn').Process(target=seen); one.start(); one.join()",
}


def ran(tmp_path, python, start, own, change="pass", **more):
    (tmp_path / "train.py").write_text(PROGRAM.replace("START", start).replace("CHANGE", change))
    env = {"PATH": os.environ["PATH"], **more, **({"PYTHONPATH": own} if own else {})}
    install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run([python, "train.py"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pythons
@pytest.mark.parametrize("own", [None, "/my/folder:/another"])
@pytest.mark.parametrize("how", STARTS)
def test_script_and_children_see_the_users_value_and_have_the_hook(tmp_path, python, how, own):
    change = "os.environ['SEEN'] = SEEN" if how == "shell" else "pass"
    assert ran(tmp_path, python, STARTS[how], own, change) == [[own, True]] * 3


@pythons
@pytest.mark.parametrize("how", ["inherits", "copy", "shell"])
def test_value_that_the_script_sets_is_what_its_children_see(tmp_path, python, how):
    change = "os.environ['PYTHONPATH'] = 'lib'; os.environ['SEEN'] = SEEN"
    assert ran(tmp_path, python, STARTS[how], "/my/folder", change) == [["lib", True]] * 3


@pythons
def test_an_environment_of_the_scripts_own_making_gets_nothing_of_the_hook(tmp_path, python):
    start = "env = {'PATH': os.environ['PATH']}; subprocess.run(child, env=env); assert list(env) == ['PATH']"
    assert ran(tmp_path, python, start, None) == [[None, True], [None, False], [None, True]]
