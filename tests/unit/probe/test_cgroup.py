"""cgroup files of both versions, as trees written by the tests with contents that kernels print."""

import pytest

from seatrial.probe.container import Cgroup


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def proc_with(tmp_path, text):
    write(tmp_path / "proc" / "self", cgroup=text)
    return str(tmp_path / "proc")


def test_v2_in_a_container_sees_itself_at_the_root(tmp_path):
    root = tmp_path / "cgroup"
    write(
        root,
        cgroup__controllers="cpu memory\n",
        cgroup__procs="1\n42\n",
        memory__current="1000000\n",
        memory__stat="anon 600000\ninactive_file 300000\n",
        memory__max="2000000\n",
        memory__events="low 0\noom 1\noom_kill 3\n",
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
        cpu__max="150000 100000\n",
    )
    cgroup = Cgroup(root=str(root), proc=proc_with(tmp_path, "0::/\n"))
    assert cgroup.version == 2 and cgroup.processes() == [1, 42]
    assert cgroup.memory_bytes() == 700000 and cgroup.memory_limit_bytes() == 2000000
    assert cgroup.oom_kills() == 3
    assert cgroup.cpu_seconds() == 2.5 and cgroup.cpu_quota_cores() == 1.5


def test_v2_limits_of_ancestors_count(tmp_path):
    root = tmp_path / "cgroup"
    write(root, cgroup__controllers="cpu memory\n")
    write(root / "user.slice", memory__max="5000\n", cpu__max="max 100000\n")
    write(root / "user.slice" / "job", memory__max="max\n", cpu__max="50000 100000\n", memory__current="10\n")
    cgroup = Cgroup(root=str(root), proc=proc_with(tmp_path, "0::/user.slice/job\n"))
    assert cgroup.memory_limit_bytes() == 5000 and cgroup.cpu_quota_cores() == 0.5 and cgroup.memory_bytes() == 10


@pytest.mark.parametrize("path", ["/docker/0123abc", "/"])
def test_v1_in_a_container_whose_path_names_folders_of_the_host(tmp_path, path):
    root = tmp_path / "cgroup"
    write(
        root / "memory",
        memory__usage_in_bytes="900\n",
        memory__stat="cache 1\ntotal_inactive_file 100\n",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    )
    write(root / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    write(root / "cpuacct", cpuacct__usage="3000000000\n")
    cgroup = Cgroup(root=str(root), proc=proc_with(tmp_path, f"9:memory:{path}\n4:cpu,cpuacct:{path}\n"))
    assert cgroup.version == 1 and cgroup.memory_bytes() == 800 and cgroup.memory_limit_bytes() is None
    assert cgroup.oom_kills() == 2 and cgroup.cpu_seconds() == 3.0 and cgroup.cpu_quota_cores() is None


def test_v1_quota(tmp_path):
    root = tmp_path / "cgroup"
    write(root / "cpu", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert Cgroup(root=str(root), proc=proc_with(tmp_path, "4:cpu:/\n")).cpu_quota_cores() == 2.5


def test_nothing_mounted_is_all_none(tmp_path):
    cgroup = Cgroup(root=str(tmp_path / "none"), proc=str(tmp_path))
    readings = (cgroup.memory_bytes(), cgroup.memory_limit_bytes(), cgroup.oom_kills(), cgroup.cpu_seconds())
    assert readings == (None,) * 4 and cgroup.processes() == []


def test_periods_in_which_the_quota_stopped_somebody(tmp_path):
    root = tmp_path / "cgroup"
    write(root, cgroup__controllers="cpu\n", cpu__stat="usage_usec 1\nnr_periods 200\nnr_throttled 50\n")
    assert Cgroup(root=str(root), proc=proc_with(tmp_path, "0::/\n")).cpu()[1] == (200, 50)
    old = tmp_path / "v1"
    write(old / "cpu", cpu__stat="nr_periods 10\nnr_throttled 1\nthrottled_time 5\n")
    assert Cgroup(root=str(old), proc=proc_with(tmp_path, "1:cpu:/\n")).cpu()[1] == (10, 1)
    write(old / "cpu", cpu__stat="nr_periods 0\nnr_throttled 0\n")
    assert Cgroup(root=str(old), proc=proc_with(tmp_path, "1:cpu:/\n")).cpu()[1] is None
