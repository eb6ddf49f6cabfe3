"""Compiled kernels that earlier processes left."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from seatrial.train.kernels import runtime

pytestmark = pytest.mark.torch


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "seatrial" / "kernels"


def test_what_is_kept_is_read_again(cache: Path) -> None:
    file = runtime.cache_name("source", "sm_90", 13000)
    assert runtime.read_cached(file) is None
    runtime.keep_cached(file, b"binary")
    assert runtime.read_cached(file) == b"binary"
    assert [path.name for path in cache.iterdir()] == [file]


def test_another_source_gpu_or_driver_is_another_file() -> None:
    first = runtime.cache_name("source", "sm_90", 13000)
    others = {
        runtime.cache_name("other", "sm_90", 13000),
        runtime.cache_name("source", "sm_80", 13000),
        runtime.cache_name("source", "sm_90", 1),
    }
    assert len(others) == 3 and first not in others


@pytest.mark.parametrize("broken", [b"", b"short", bytes(40), b"x" * 100])
def test_a_broken_file_counts_as_none(cache: Path, broken: bytes) -> None:
    runtime.keep_cached("a.cubin", b"binary")
    (cache / "a.cubin").write_bytes(broken)
    assert runtime.read_cached("a.cubin") is None


def test_a_folder_that_others_may_write_is_not_used(cache: Path) -> None:
    runtime.keep_cached("a.cubin", b"binary")
    cache.chmod(0o777)
    assert runtime.cache_folder() is None and runtime.read_cached("a.cubin") is None


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runtime.keep_cached("a.cubin", b"binary")
    assert runtime.read_cached("a.cubin") is None
