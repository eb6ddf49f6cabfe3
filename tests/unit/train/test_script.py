"""Going on from an earlier run: what the recipes make of --resume."""

import argparse

import pytest

torch = pytest.importorskip("torch")

from seatrial.train import options  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """The arguments of a recipe whose run goes on from ``shown``, as seatrial sets it."""

    def run(*words, shown):
        monkeypatch.delenv("RANK", raising=False)
        if shown is None:
            monkeypatch.delenv("SEATRIAL_RESUME_DIR", raising=False)
        else:
            monkeypatch.setenv("SEATRIAL_RESUME_DIR", str(shown))
        parser = argparse.ArgumentParser()
        options.add_folder_options(parser)
        options.add_training_options(parser, epochs=1, batch=8, learning_rate=0.1)
        return options.parse(parser, [*words, "--models", str(tmp_path / "models")])

    return run


@pytest.mark.parametrize("there", ["missing", "empty", "without a checkpoint"])
def test_a_run_that_saved_no_checkpoint_begins_anew(parse, tmp_path, capsys, there):
    folder = tmp_path / "checkpoints"
    if there != "missing":
        folder.mkdir()
    if there == "without a checkpoint":
        (folder / ".checkpoint-0000000001.pt.tmp").write_bytes(b"half")
    assert parse("--resume", str(folder), shown=folder).resume is None
    assert "starts from scratch" in capsys.readouterr().err


def test_a_run_with_a_checkpoint_goes_on(parse, tmp_path, capsys):
    (tmp_path / "checkpoint-0000000001.pt").write_bytes(b"")  # damaged is another matter: the loop reports it
    assert parse("--resume", str(tmp_path), shown=tmp_path).resume == tmp_path
    assert capsys.readouterr().err == ""


def test_a_folder_that_a_person_named_is_kept(parse, tmp_path):
    """Without a checkpoint in it, it is the wrong one: the loop refuses it."""
    assert parse("--resume", str(tmp_path), shown=None).resume == tmp_path
    assert parse("--resume", str(tmp_path), shown=tmp_path / "other").resume == tmp_path
