"""Inputs of training: IDX files, CIFAR-10, text data and checkpoints. Errors are those of ``seatrial.train``."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fuzz.attack import attack, one_case
from fuzz.hostile import nearly

torch = pytest.importorskip("torch")

from seatrial.recipes.spam import read_messages  # noqa: E402  after the look whether torch is there
from seatrial.train.data import cifar10 as cifar10  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.data.mnist import read_idx  # noqa: E402
from seatrial.train.data.texts import TextSet  # noqa: E402
from seatrial.train.errors import TrainError  # noqa: E402
from seatrial.train.saving.checkpoint import load, load_newest  # noqa: E402

IDX = struct.pack(">IIII", 0x803, 2, 3, 3) + bytes(18)
MESSAGES = "".join(f"ham\tHello, are you there {n}?\nspam\tWINNER {n}!! Call now\n" for n in range(12))


def read(path: Path, data: bytes) -> object:
    path.write_bytes(data)
    return read_idx(path, 3)


def test_idx(tmp_path: Path, cases: int) -> None:
    attack(lambda data: read(tmp_path / "a", data), nearly(IDX), cases, TrainError)


def test_idx_compressed(tmp_path: Path, cases: int) -> None:
    inputs = st.one_of(nearly(gzip.compress(IDX, mtime=0)), nearly(IDX).map(lambda data: gzip.compress(data, mtime=0)))
    attack(lambda data: read(tmp_path / "a.gz", data), inputs, cases, TrainError)


def test_idx_bombs(tmp_path: Path) -> None:
    """A header that promises 2⁹⁶ bytes, and a file of 260 KB that unpacks to 256 MB: for any promise."""
    header = struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    assert one_case(lambda data: read(tmp_path / "a", data), header, TrainError)
    zeros = zeros_packed()
    for shape in ((1024, 1024, 256), (1, 3, 3), (2**32 - 1, 2**16, 2**16)):
        packed = gzip.compress(struct.pack(">IIII", 0x803, *shape), mtime=0) + zeros
        assert one_case(lambda data: read(tmp_path / "a.gz", data), packed, TrainError)
    with (tmp_path / "large").open("wb") as file:
        file.write(struct.pack(">IIII", 0x803, 1, 3, 3))
        file.truncate(2**33)
    assert one_case(lambda path: read_idx(path, 3), tmp_path / "large", TrainError)


@cache
def zeros_packed() -> bytes:
    """256 MB of zeros in 260 KB."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as file:
        for _ in range(2**8):
            file.write(bytes(2**20))
    return out.getvalue()


def test_several_members_are_one_file(tmp_path: Path) -> None:
    """``cat a.gz b.gz`` is a gzip file too."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(IDX[:20]) + gzip.compress(IDX[20:]))
    assert read_idx(tmp_path / "a.gz", 3).shape == (2, 3, 3)


def test_cifar(tmp_path: Path, cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small records, so that the file's content matters and not its length alone."""
    monkeypatch.setattr(cifar10, "RECORDS", 2)
    record = bytes(2 * cifar10.RECORD_BYTES)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name in cifar10.MD5:
            entry = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            entry.size = len(record)
            tar.addfile(entry, io.BytesIO(record))

    def read_as(case: tuple[str, bytes]) -> object:
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / case[0]).write_bytes(case[1])
        return cifar10._records(tmp_path, "data_batch_1.bin")

    plain = st.tuples(st.just("data_batch_1.bin"), nearly(record))
    packed = st.tuples(st.just("data_batch_1.bin.xz"), nearly(lzma.compress(record)))
    whole = st.tuples(st.just(cifar10.ARCHIVE), nearly(archive.getvalue()))
    attack(read_as, st.one_of(plain, packed, whole), cases, TrainError)


def test_cifar_bombs(tmp_path: Path) -> None:
    one = tmp_path / "xz"
    one.mkdir()
    (one / "data_batch_1.bin.xz").write_bytes(lzma.compress(bytes(2**28), preset=0))
    assert one_case(lambda folder: cifar10._records(folder, "data_batch_1.bin"), one, TrainError)
    two = tmp_path / "tar"
    two.mkdir()
    (two / cifar10.ARCHIVE).write_bytes(zeros_packed())
    assert one_case(lambda folder: cifar10._records(folder, "data_batch_1.bin"), two, TrainError)
    three = tmp_path / "folder in it"
    three.mkdir()
    with tarfile.open(three / cifar10.ARCHIVE, "w:gz") as tar:
        entry = tarfile.TarInfo(f"{cifar10.FOLDER}/data_batch_1.bin")
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
    assert one_case(lambda folder: cifar10._records(folder, "data_batch_1.bin"), three, TrainError)


def test_messages(tmp_path: Path, cases: int) -> None:
    def read_texts(data: bytes) -> object:
        (tmp_path / "SMSSpamCollection").write_bytes(data)
        return read_messages(tmp_path)

    attack(read_texts, nearly(MESSAGES), cases, TrainError)


def test_token_rows(cases: int) -> None:
    rows = st.lists(st.lists(st.integers(0, 2**31), max_size=600), max_size=4)
    attack(lambda tokens: TextSet.of(tokens, torch.zeros(len(tokens))), rows, cases, TrainError)


def test_labels(cases: int) -> None:
    labels = st.lists(st.one_of(st.integers(-1, 2), st.integers(-(2**40), 2**40)), max_size=4)
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)

    def make(values: list[int]) -> object:
        return ImageSet(images[: len(values)], torch.tensor(values, dtype=torch.long), 2)

    attack(make, labels, cases, TrainError)


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


STATE = {"model": {"w": torch.zeros(3)}, "optimizer": {"state": {}}, "epoch": 1, "step": 2, "rng": [None], "best": 0.5}


def test_checkpoint(tmp_path: Path, cases: int) -> None:
    def read_state(data: bytes) -> object:
        (tmp_path / "checkpoint-1.pt").write_bytes(data)
        return load(tmp_path / "checkpoint-1.pt")

    other = saved({"w": torch.zeros(2)})
    old = io.BytesIO()
    torch.save(STATE, old, _use_new_zipfile_serialization=False)
    inputs = st.one_of(
        nearly(saved(STATE), other, old.getvalue()), st.binary(max_size=300).map(pickled_anew), changed_pickle()
    )
    attack(read_state, inputs, cases, TrainError)


def pickled_anew(program: bytes) -> bytes:
    """A checkpoint whose pickle is these bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(STATE))) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            data = program if entry.filename.endswith("data.pkl") else old.read(entry)
            new.writestr(entry, data)
    return out.getvalue()


def changed_pickle() -> st.SearchStrategy[bytes]:
    with zipfile.ZipFile(io.BytesIO(saved(STATE))) as old:
        name = next(name for name in old.namelist() if name.endswith("data.pkl"))
        return nearly(old.read(name)).map(pickled_anew)


class _Stranger:
    """Unpickled, it would run a program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (__import__("os").system, ("touch /tmp/never",))


def test_known_checkpoints(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"N" * 2**28)
        file.writestr("archive/version", b"3\n")
    nested = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    for data in (
        bomb.getvalue(),
        pickled_anew(nested),
        pickled_anew(b"\x80\x02X\xff\xff\xff\x7fabc."),
        pickled_anew(b"\x80\x02" + b"\x8a\xff" + b"\xff" * 255 + b"."),
        pickle.dumps(_Stranger()),
        pickled_anew(pickle.dumps(_Stranger(), protocol=2)),
        pickle.dumps({"a": 1}),
        b"",
    ):
        (tmp_path / "checkpoint-1.pt").write_bytes(data)
        assert one_case(load, tmp_path / "checkpoint-1.pt", TrainError), data[:40]
    notes: list[str] = []
    assert one_case(lambda folder: load_newest(folder, notes.append), tmp_path, TrainError)
    assert notes
