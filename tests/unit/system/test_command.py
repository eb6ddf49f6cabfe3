"""The one door to other programs: what comes back, time-outs, streaming, terminals, and what outlives us."""

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

from seatrial.errors import CommandError, CommandTimeoutError, EngineUnavailableError
from seatrial.system import command


def python(program):
    return [sys.executable, "-c", program]


def test_check_raises_with_argv_exit_code_and_stderr():
    with pytest.raises(CommandError, match="the reason") as caught:
        command.check(python("import sys; sys.exit('first\\nthe reason')"), timeout_s=300)
    assert caught.value.exit_code_of_command == 1
    assert caught.value.stderr == "first\nthe reason\n"
    assert caught.value.argv[0] == sys.executable


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(EngineUnavailableError, match='"no-such-program" cannot be run'):
        command.run(["no-such-program"], timeout_s=300)


def test_a_working_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineUnavailableError, match=r"Cannot enter .*gone"):
        command.run([sys.executable, "-V"], timeout_s=300, cwd=tmp_path / "gone")


def test_a_command_that_hangs_is_killed_in_its_time():
    began = time.monotonic()
    with pytest.raises(CommandTimeoutError, match=r"within 0\.2 s"):
        command.run(python("import time; time.sleep(600)"), timeout_s=0.2)
    assert time.monotonic() - began < 300


def test_standard_input_is_closed_unless_given():
    reading = python("import sys; print(repr(sys.stdin.read()))")
    assert command.run(reading, timeout_s=300).stdout == "''\n"
    assert command.run(reading, timeout_s=300, input="typed").stdout == "'typed'\n"


def test_stream_hands_over_lines_as_they_come(tmp_path):
    """Its second line is printed once the first was seen."""
    seen, went = [], tmp_path / "seen"
    waits = f"while not os.path.exists({str(went)!r}): time.sleep(0.01)"
    program = f"import os, time\nprint('a', flush=True)\n{waits}\nprint('b')"
    ended = command.stream(python(program), lambda line: (seen.append(line), went.touch()))
    assert seen == ["a", "b"]
    assert (ended.exit_code, ended.stdout) == (0, "a\nb")


def test_a_stream_that_is_apart_gets_no_signal_of_our_terminal():
    pid = os.getpid()
    program = f"import os; print(os.getpgid(0) == os.getpgid({pid}))"
    assert command.stream(python(program), lambda _: None).stdout == "True"
    assert command.stream(python(program), lambda _: None, apart=True).stdout == "False"


def test_stream_ends_the_command_when_the_reader_fails(tmp_path):
    def fail(line):
        raise RuntimeError(line)

    program = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        command.stream(python(program), fail)
    assert time.monotonic() - began < 300
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(caught.value)), 0)


def test_interactive_keeps_a_copy_of_stderr(capfdbinary):
    ended = command.call_interactive(python("import sys; print('why', file=sys.stderr); sys.exit(5)"), keep_stderr=True)
    assert (ended.exit_code, ended.stderr) == (5, "why\n")


def test_a_detached_process_has_a_session_of_its_own(tmp_path):
    output = tmp_path / "out"
    pid = command.spawn_detached(python("import os; print(os.getsid(0) == os.getpid())"), output=output)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert output.read_text() == "True\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_an_extra_is_installed_from_the_checkout_that_is_still_here(tmp_path, monkeypatch, is_there):
    origin = SimpleNamespace(read_text=lambda name: json.dumps({"url": f"file://{tmp_path}"}))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: origin)
    if is_there:
        (tmp_path / "pyproject.toml").touch()
    assert command.install_extra("search") == f"pip install '{tmp_path if is_there else 'seatrial'}[search]'"
