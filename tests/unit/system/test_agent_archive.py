"""The agent's archive."""

import subprocess
import sys
import zipfile

from seatrial.system import agent_archive


def test_same_content_same_bytes_and_made_once(tmp_path):
    first, second = agent_archive.build(tmp_path / "a"), agent_archive.build(tmp_path / "b")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    before = first.stat().st_mtime_ns
    assert agent_archive.build(tmp_path / "a") == first and first.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name] and first.stat().st_mode & 0o777 == 0o644


def test_it_holds_the_agents_spaces_and_nothing_of_the_host(tmp_path):
    names = zipfile.ZipFile(agent_archive.build(tmp_path)).namelist()
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == {"agent", "common", "compat", "events", "probe", "findings"} and "pynvml.py" in names


def test_it_runs_without_anything_installed(tmp_path):
    archive = agent_archive.build(tmp_path)
    done = subprocess.run([sys.executable, "-I", "-S", str(archive)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage: agent.pyz PLAN_JSON" in done.stderr
