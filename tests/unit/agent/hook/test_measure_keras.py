"""Logs of Keras' epochs reach the receipt: through its list of callbacks, whose calls these are."""

from hooked_script import run
from tables import constant

SCRIPTS = constant(__file__, "scripts")


def reported(tmp_path, script):
    (tmp_path / "keras" / "src").mkdir(parents=True)
    (tmp_path / "keras" / "__init__.py").write_text("__version__ = '3'\n")
    (tmp_path / "keras" / "config.py").write_text("def backend(): return 'torch'\n")
    (tmp_path / "keras" / "src" / "__init__.py").touch()
    (tmp_path / "keras" / "src" / "callbacks.py").write_text(SCRIPTS["keras"])
    _, _, lines = run(tmp_path, script, measured=True, preamble="", ending="")
    return [{key: line[key] for key in line if key != "t"} for line in lines if "by" in line]


def test_losses_and_metrics_of_each_epoch_and_of_an_evaluation(tmp_path):
    by = {"by": "keras"}
    assert reported(tmp_path, SCRIPTS["script"]) == [
        {**by, "epoch": 1, "phase": "train", "loss": 2.0, "accuracy": 0.5},
        {**by, "epoch": 1, "phase": "val", "val_loss": 3.0},
        {**by, "epoch": 2, "phase": "train", "loss": 1.5},  # no number that is none
        {**by, "epoch": 3, "phase": "train", "loss": 1.0},  # each fit counts from 0
        {**by, "epoch": 3, "phase": "test", "loss": 0.5, "accuracy": 0.75},  # and not what fit evaluates itself
    ]


def test_an_evaluation_without_a_training_has_no_epoch(tmp_path):
    script = "from keras.src.callbacks import evaluate\nfrom keras import config\nevaluate({'loss': 0.5})\n"
    assert reported(tmp_path, script) == [{"by": "keras", "phase": "test", "loss": 0.5}]


def test_logs_that_are_handed_on_by_name(tmp_path):
    assert reported(tmp_path, SCRIPTS["by-name"]) == [
        {"by": "keras", "epoch": 1, "phase": "train", "loss": 2.0},
        {"by": "keras", "epoch": 1, "phase": "val", "val_loss": 3.0},
        {"by": "keras", "epoch": 1, "phase": "test", "loss": 0.5},
    ]


def test_a_loss_that_is_no_number_leaves_no_line(tmp_path):
    script = "from keras.src.callbacks import fit\nfrom keras import config\nfit([{'loss': float('inf')}])\n"
    assert reported(tmp_path, script) == []
