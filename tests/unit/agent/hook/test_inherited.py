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
    "without an announcement": "from multiprocessing import util; "
    "os.waitpid(util.spawnv_passfds(os.fsencode(child[0]), child, [1]), 0)",
    "spawned": "one = multiprocessing.get_context('spawn').Process(target=seen); one.start(); one.join()",
}


def ran(tmp_path, python, start, own, change="pass", **more):
    (tmp_path / "train.py").write_text(PROGRAM.replace("START", start).replace("CHANGE", change))
    env = {"PATH": os.environ["PATH"], **more, **({"PYTHONPATH": own} if own else {})}
    install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run([python, "train.py"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pythons
@pytest.mark.parametrize("own", [None, "/my/folder:/another", ":/behind/the/working/directory"])
@pytest.mark.parametrize("how", STARTS)
def test_script_and_children_see_the_users_value_and_have_the_hook(tmp_path, python, how, own):
    change = "os.environ['SEEN'] = SEEN" if how == "shell" else "pass"
    assert ran(tmp_path, python, STARTS[how], own, change) == [[own, True]] * 3


@pythons
@pytest.mark.parametrize("how", ["inherits", "copy", "shell", "without an announcement"])
def test_value_that_the_script_sets_is_what_its_children_see(tmp_path, python, how):
    change = "os.environ['PYTHONPATH'] = 'lib'; os.environ['SEEN'] = SEEN"
    assert ran(tmp_path, python, STARTS[how], "/my/folder", change) == [["lib", True]] * 3


@pythons
def test_an_environment_of_the_scripts_own_making_gets_nothing_of_the_hook(tmp_path, python):
    start = "env = {'PATH': os.environ['PATH']}; subprocess.run(child, env=env); assert list(env) == ['PATH']"
    assert ran(tmp_path, python, start, None) == [[None, True], [None, False], [None, True]]


#: Threads that start processes with os.environ itself, while others do what Python announces.
THREADS = """
import os, subprocess, sys, threading
errors, left = [], [150] * 2
def announce():
    while any(left): sys.audit("anything")
def start(at):
    while left[at]:
        left[at] -= 1
        try: subprocess.run(["/bin/true"], env=os.environ)
        except KeyError as error: errors.append(error)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=announce) for _ in left]
threads += [threading.Thread(target=start, args=[at]) for at in range(len(left))]
for each in threads: each.start()
for each in threads: each.join()
print(len(errors))
"""


@pythons
def test_threads_that_start_processes_do_not_lose_each_others_variables(tmp_path, python):
    (tmp_path / "train.py").write_text(THREADS)
    env = {"PATH": os.environ["PATH"]}
    install.install(str(tmp_path / "hooks"), env, None, measure_steps=True)
    ended = subprocess.run([python, "train.py"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("0\n", "")
