"""cgroup files of both versions, as trees written by the tests with contents that kernels print."""

from seatrial.probe.container import Cgroup
from tables import cases


@cases("files", "path", "reads", "unknown", "periods")
def test_readings(tmp_path, files, path, reads, unknown, periods):
    written = {f"cgroup/{name}": text for name, text in files.items()}
    for name, text in (written if path is None else {"proc/self/cgroup": f"{path}\n", **written}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cgroup = Cgroup(root=str(tmp_path / "cgroup"), proc=str(tmp_path / "proc"))
    expected = {**(reads or {}), **dict.fromkeys(unknown or ())}
    found = {name: getattr(cgroup, name) for name in expected}
    assert {name: value() if callable(value) else value for name, value in found.items()} == expected
    assert reads or cgroup.cpu()[1] == periods
