"""What is said of folders and of other programs' files: what they are, and a command to go on with."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.runs.find_model import check_other_file, folder_error
from seatrial.runs.trained_model import EXPORT, SERVE, Verb


def folder(place: Path, **files: str) -> Path:
    made = place / "st"
    made.mkdir()
    for name, text in files.items():
        (made / name).write_text(text)
    return made


BERT = {"config.json": '{"architectures": ["BertForX"]}', "model.safetensors": ""}


@pytest.mark.parametrize(
    ("files", "verb", "said", "run"),
    [
        (BERT, EXPORT, "is a model of transformers", "transformers.BertForX.from_pretrained("),
        (
            {**BERT, "config.json": "[}"},
            EXPORT,
            "is a model of transformers",
            "transformers.AutoModel.from_pretrained(",
        ),
        ({"config.json": '{"architectures": ["x y"]}', "pytorch_model.bin": ""}, EXPORT, "transformers", "AutoModel."),
        (BERT, SERVE, "is a model of transformers", "seatrial serve serve.py:Model "),
        (
            {**BERT, "modules.json": "[]"},
            SERVE,
            "is a model of sentence-transformers",
            "seatrial serve serve.py:Model ",
        ),
        ({".metadata": "", "__0_0.distcp": ""}, EXPORT, "is a checkpoint in parts", "dcp_to_torch "),
        ({"saved_model.pb": ""}, SERVE, "is a model of TensorFlow", "tf2onnx"),
        ({}, SERVE, "has no model in it: it is empty", "ls "),
        ({"a.txt": ""}, EXPORT, "has no model in it: there are a.txt", "ls "),
        ({"a.pt2": "", "b.txt": ""}, EXPORT, "is no model itself; in it are a.pt2", "seatrial export "),
    ],
)
def test_a_folder(tmp_path: Path, files: dict[str, str], verb: Verb, said: str, run: str) -> None:
    error = folder_error(folder(tmp_path, **files), verb)
    assert said in error.message and error.message.startswith("The folder "), "a name is no first word of a sentence"
    assert run in (error.run or "") and shlex.split(error.run or "", comments=True)


def test_files_of_others() -> None:
    with pytest.raises(UsageError, match=r"my\.keras is a model of Keras") as told:
        check_other_file(Path("my.keras"), SERVE)
    words = shlex.split(told.value.run or "")
    assert words[:2] == ["python", "-c"] and words[-3:] == ["seatrial", "serve", "my.onnx"]
    compile(words[2], "the command", "exec")
    with pytest.raises(UsageError, match=r"m\.onnx is an ONNX file already") as told:
        check_other_file(Path("m.onnx"), EXPORT)
    assert told.value.run == "seatrial serve m.onnx"
    check_other_file(Path("m.onnx"), SERVE)


def test_a_name_with_quotes_stays_a_name(tmp_path: Path) -> None:
    path = tmp_path / """it's a "model".keras"""
    path.write_text("")
    with pytest.raises(UsageError) as refused:
        check_other_file(path, EXPORT)
    words = shlex.split(refused.value.run)
    assert words[:2] == ["python", "-c"] and words[3] == "&&"
    texts = [each.value for each in ast.walk(ast.parse(words[2])) if isinstance(each, ast.Constant)]
    assert str(path) in texts and str(path.with_suffix(".onnx")) in texts
