"""cgroup paths of every engine, as they are written on real machines; and this process, which is in no container."""

from seatrial.probe import processes
from seatrial.probe.container import MachineSampler
from seatrial.probe.processes import Owner
from tables import cases

ID = "11d8a20c894870b9431271c9e8f58909cb6894624d4f3be49fdf7f74d41f1134"


@cases("cgroup", "owner")
def test_paths(cgroup, owner):
    assert processes.parse(cgroup) == (None if owner is None else Owner(*owner))


def test_a_process_that_is_gone_has_no_owner():
    assert processes.owner(2**22 + 1) is None


def test_the_machine_is_read_from_real_files():
    whole = MachineSampler()
    sum(range(3_000_000))
    reading = whole.read()
    assert 0 < reading["cpu_cores"] <= reading["cpu_count"] + 0.5
    assert 0 < reading["memory_used_bytes"] < reading["memory_total_bytes"]


def test_a_machine_that_reports_nothing_is_all_none(tmp_path):
    reading = MachineSampler(str(tmp_path)).read()
    assert reading["cpu_cores"] is None and reading["memory_used_bytes"] is None and reading["load_1m"] is None


def test_the_cgroup_of_a_known_process_is_not_read_anew(tmp_path, monkeypatch):
    read = []
    real = processes.owner
    monkeypatch.setattr(processes, "owner", lambda pid, proc="/proc": read.append(pid) or real(pid, proc))
    for pid, path in ((7, "/user.slice"), (8, f"/docker/{ID}")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{path}\n")
    requested = processes.Attribution(str(tmp_path))
    assert requested.containers() == {Owner("docker", ID): [8]}
    (tmp_path / "7" / "cgroup").write_text(f"0::/docker/{ID}\n")  # an engine moves it into its container
    assert requested.containers() == requested.containers() == {Owner("docker", ID): [7, 8]}
    read.clear()
    assert requested.containers() == {Owner("docker", ID): [7, 8]} and read == []
    monkeypatch.setattr(processes, "RESCAN_S", 0.0)
    requested._rescan_at_s = 0.0
    (tmp_path / "8" / "cgroup").write_text("0::/\n")
    assert requested.containers() == {Owner("docker", ID): [7]} and sorted(read) == [7, 8]
