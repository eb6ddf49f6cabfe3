"""Arguments of ``seatrial serve``: each kind of word, and the message if nothing fits."""

from __future__ import annotations

import io
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import DataError, SeatrialError, UsageError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import DataMount
from seatrial.job.model import Job, Target
from seatrial.runs.jobs import refuse_taken_port, serving_job
from seatrial.runs.models import EXPORT, SERVE, Verb, check_model_file, find_model, of_file
from seatrial.runs.store import RunStore
from seatrial.system.host import Host
from tables import cases


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "shop"
    (made / "models" / "spam").mkdir(parents=True)
    (made / "models" / "digits.safetensors").write_bytes(b"weights")
    (made / "models" / "spam" / "model.safetensors").write_bytes(b"more weights")
    (made / "net.onnx").write_bytes(b"graph")
    (made / "net.onnx.data").write_bytes(b"weights next to it")
    (made / "train.py").write_text("import torch\n")
    return made


@pytest.fixture
def store(project: Path, tmp_path: Path) -> RunStore:
    return RunStore(project, Host({"SEATRIAL_STATE": str(tmp_path / "state")}))


def found(word: str, project: Path, store: RunStore):
    return find_model(word, project / "models", store, SERVE)


def job(project: Path, word: str, store: RunStore, **options: Any) -> Job:
    plain = Job(project=project, target=Target(kind="script", value="train.py"))
    return serving_job(plain, found(word, project, store), **options)


def test_each_kind_of_word(project: Path, store: RunStore) -> None:
    recipe = found("digits", project, store)
    assert (recipe.kind, recipe.folder) == ("recipe", project / "models")
    assert job(project, "spam", store).serve.weights[0].path == "spam/model.safetensors"
    file = found(str(project / "net.onnx"), project, store)
    assert (file.kind, file.model, file.name, len(file.files)) == ("file", "net.onnx", "net", 2)


@cases("word", "sentence", "run")
def test_what_is_not_there(project: Path, store: RunStore, word: str, sentence: str, run: str) -> None:
    with pytest.raises(SeatrialError) as raised:
        found(word, project, store)
    assert sentence in raised.value.message and (raised.value.run or "").startswith(run)


def test_an_onnx_file_that_is_not_there_is_no_finished_export(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="File not found"):
        of_file(tmp_path / "gone.onnx", EXPORT)


def test_what_a_file_reports_of_its_training_is_no_servers(project: Path, store: RunStore) -> None:
    training = {
        "timeout_s": 60.0,
        "gpus": GpuRequest("all"),
        "data": DataMount(source=project, read_only=True),
        "env": {"A": "1"},
    }
    plain = Job(project=project, target=Target(kind="script", value="train.py"), **training)  # type: ignore[arg-type]
    made = serving_job(plain, found("digits", project, store), typed="digits")
    assert (made.timeout_s, made.data, made.watch.hang_after_s, made.launcher) == (None, None, None, "none")
    assert made.gpus == GpuRequest("count", 1) and made.env == {"A": "1"}
    assert made.models is not None and made.models.read_only
    with pytest.raises(UsageError, match="computes on one GPU"):
        serving_job(plain, found("digits", project, store), typed="digits", given={"gpus"})


def test_a_taken_port_names_a_free_one(project: Path, store: RunStore) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} is taken") as raised:
            refuse_taken_port(job(project, "digits", store, port=port, typed=f"digits --port {port}"))
    named = int((raised.value.run or "").rpartition("--port ")[2])
    assert port < named < port + 20
    refuse_taken_port(job(project, "digits", store, port=port))


def test_a_list_of_files_is_never_read_whole(tmp_path: Path) -> None:
    listed = 1 << 29
    with (tmp_path / "model.pt").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(listed)
        file.seek(listed)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, listed - 4, 4, 0))
    with pytest.raises(DataError, match="its list of files is too long"):
        check_model_file(of_file(tmp_path / "model.pt", EXPORT), EXPORT)


@pytest.mark.parametrize("verb", [SERVE, EXPORT], ids=lambda verb: verb.name)
def test_a_name_that_is_no_text_is_no_defect(tmp_path: Path, verb: Verb) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/é", b"")
    (tmp_path / "model.pt2").write_bytes(buffer.getvalue().replace("é".encode(), b"\xff\xff"))
    check_model_file(of_file(tmp_path / "model.pt2", verb), verb)
