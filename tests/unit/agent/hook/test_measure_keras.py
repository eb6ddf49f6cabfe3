"""Logs of Keras' epochs reach the receipt: through its list of callbacks, whose calls these are."""

from hooked_script import run

#: The calls of fit and evaluate, as Keras 3.15 makes them (keras/src/backend/*/trainer.py).
KERAS = """
class CallbackList:
    params, model = {"steps": 2}, None
    def on_train_begin(self, logs=None): pass
    def on_train_end(self, logs=None): pass
    def on_test_begin(self, logs=None): pass
    def on_test_end(self, logs=None): pass
    def on_predict_begin(self, logs=None): pass
    def on_predict_end(self, logs=None): pass
    def on_train_batch_begin(self, batch, logs=None): pass
    def on_train_batch_end(self, batch, logs=None): pass
    def on_epoch_end(self, epoch, logs=None): pass

def fit(logs):
    callbacks = CallbackList()
    callbacks.on_train_begin()
    for epoch, each in enumerate(logs):
        for batch in range(2):
            callbacks.on_train_batch_begin(batch)
            callbacks.on_train_batch_end(batch, {})
        callbacks.on_test_begin()
        callbacks.on_test_end({"loss": 9.0})
        callbacks.on_epoch_end(epoch, each)
    callbacks.on_train_end(logs=each)

def evaluate(logs):
    callbacks = CallbackList()
    callbacks.on_test_begin()
    callbacks.on_test_end(logs)

def predict():
    callbacks = CallbackList()
    callbacks.on_predict_begin()
    callbacks.on_predict_end()
"""
SCRIPT = """
import numpy
from keras import config
from keras.src.callbacks import evaluate, fit, predict
fit([{"loss": 2.0, "accuracy": 0.5, "val_loss": 3.0}, {"loss": numpy.float32(1.5), "val_loss": float("nan")}])
fit([{"loss": 1.0, "note": "text"}])
evaluate({"loss": 0.5, "accuracy": 0.75})
predict()
"""


def reported(tmp_path, script):
    (tmp_path / "keras" / "src").mkdir(parents=True)
    (tmp_path / "keras" / "__init__.py").write_text("__version__ = '3'\n")
    (tmp_path / "keras" / "config.py").write_text("def backend(): return 'torch'\n")
    (tmp_path / "keras" / "src" / "__init__.py").touch()
    (tmp_path / "keras" / "src" / "callbacks.py").write_text(KERAS)
    _, _, lines = run(tmp_path, script, measured=True, preamble="", ending="")
    return [{key: line[key] for key in line if key != "t"} for line in lines if "by" in line]


def test_losses_and_metrics_of_each_epoch_and_of_an_evaluation(tmp_path):
    by = {"by": "keras"}
    assert reported(tmp_path, SCRIPT) == [
        {**by, "epoch": 1, "phase": "train", "loss": 2.0, "accuracy": 0.5},
        {**by, "epoch": 1, "phase": "val", "val_loss": 3.0},
        {**by, "epoch": 2, "phase": "train", "loss": 1.5},  # no number that is none
        {**by, "epoch": 3, "phase": "train", "loss": 1.0},  # each fit counts from 0
        {**by, "epoch": 3, "phase": "test", "loss": 0.5, "accuracy": 0.75},  # and not what fit evaluates itself
    ]


def test_an_evaluation_without_a_training_has_no_epoch(tmp_path):
    script = "from keras.src.callbacks import evaluate\nfrom keras import config\nevaluate({'loss': 0.5})\n"
    assert reported(tmp_path, script) == [{"by": "keras", "phase": "test", "loss": 0.5}]


#: Keras 2.15 (keras/src/engine/training.py) hands the logs of an evaluation on by their name.
BY_NAME = """
from keras.src.callbacks import CallbackList
from keras import config
callbacks = CallbackList()
callbacks.on_train_begin()
callbacks.on_train_batch_begin(0)
callbacks.on_train_batch_end(0, {})
callbacks.on_epoch_end(0, logs={"loss": 2.0, "val_loss": 3.0})
callbacks.on_train_end(logs={})
callbacks.on_test_begin()
callbacks.on_test_end(logs={"loss": 0.5})
"""


def test_logs_that_are_handed_on_by_name(tmp_path):
    assert reported(tmp_path, BY_NAME) == [
        {"by": "keras", "epoch": 1, "phase": "train", "loss": 2.0},
        {"by": "keras", "epoch": 1, "phase": "val", "val_loss": 3.0},
        {"by": "keras", "epoch": 1, "phase": "test", "loss": 0.5},
    ]


def test_a_loss_that_is_no_number_leaves_no_line(tmp_path):
    script = "from keras.src.callbacks import fit\nfrom keras import config\nfit([{'loss': float('inf')}])\n"
    assert reported(tmp_path, script) == []
