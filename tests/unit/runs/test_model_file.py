"""Files that no server opens are told before an image is built."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from seatrial.errors import DataError, UsageError
from seatrial.runs.models import EXPORT, SERVE, check_model_file, of_file


def safetensors(path: Path, *, cut: int = 0) -> Path:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + b"\0" * 8
    path.write_bytes(whole[: len(whole) - cut])
    return path


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path


def check(path: Path) -> None:
    check_model_file(of_file(path, SERVE), SERVE)


def test_files_that_may_be_served(tmp_path: Path) -> None:
    (tmp_path / "w.examples.safetensors").write_bytes(b"")
    check(safetensors(tmp_path / "w.safetensors"))
    check(zipped(tmp_path / "n.pt2", "n/models/model.json"))


@pytest.mark.parametrize("cut", [1, 8, 30, 70])
def test_truncated(tmp_path: Path, cut: int) -> None:
    with pytest.raises(DataError, match=r"w\.safetensors is truncated") as reported:
        check(safetensors(tmp_path / "w.safetensors", cut=cut))
    assert (reported.value.run or "").startswith("ls -l ")
    whole = zipped(tmp_path / "n.pt2", "n/models/model.json").read_bytes()
    (tmp_path / "n.pt2").write_bytes(whole[:-cut])
    with pytest.raises(DataError, match=r"n\.pt2 is truncated"):
        check(tmp_path / "n.pt2")


def test_pickles_and_weights_alone(tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(b"\x80\x02}q\x00.")
    for path in (zipped(tmp_path / "w.pt", "w/data.pkl", "w/data/0"), tmp_path / "old.pt"):
        with pytest.raises(UsageError, match="a pickle"):
            check(path)
    with pytest.raises(UsageError, match="holds weights without their network") as reported:
        check(safetensors(tmp_path / "w.safetensors"))
    assert (reported.value.run or "").endswith("w.safetensors --to pt2 --model net:make_model")


def test_an_export_reports_as_early_what_it_lacks(tmp_path: Path) -> None:
    for name in ("w.pt", "last.ckpt", "model_best.pth.tar", "pytorch_model.bin"):
        model = of_file(zipped(tmp_path / name, "w/data.pkl", "w/data/0"), EXPORT)
        with pytest.raises(UsageError, match=f"{name} holds weights without their network") as reported:
            check_model_file(model, EXPORT)
        assert (reported.value.run or "").endswith(f"{name} --to onnx --model net:make_model")
        check_model_file(model, EXPORT, with_network=True)
    assert of_file(tmp_path / "model_best.pth.tar", EXPORT).name == "model_best"
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"w\.pt is truncated"):
        check_model_file(of_file(tmp_path / "w.pt", EXPORT), EXPORT, with_network=True)
    with pytest.raises(UsageError, match="is TorchScript"):
        check_model_file(of_file(zipped(tmp_path / "s.pt", "s/data.pkl", "s/constants.pkl"), EXPORT), EXPORT)
