"""Which framework a Keras 3 script needs: what it sets itself, the environment, keras.json, else TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning_sites import facts_of
from seatrial.errors import UsageError
from seatrial.job.script import with_keras_backend
from tables import cases

SETS = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras\n'


@cases("source", "env", "framework")
def test_the_backend(tmp_path: Path, source: str, env: dict[str, str], framework: str | None) -> None:
    found = with_keras_backend(facts_of(tmp_path, source), env, tmp_path)
    assert found.framework == framework
    assert framework is None or framework in (*found.imports, "tensorflow")


def test_keras_json(tmp_path: Path) -> None:
    script = facts_of(tmp_path, "import keras")
    for folder in (tmp_path / "home" / ".keras", tmp_path / "settings"):
        folder.mkdir(parents=True)
    (tmp_path / "home" / ".keras" / "keras.json").write_text('{"backend": "torch"}')
    (tmp_path / "settings" / "keras.json").write_text('{"backend": "jax"}')
    home = tmp_path / "home"
    assert with_keras_backend(script, {}, tmp_path, home).framework == "torch"
    assert with_keras_backend(script, {}, tmp_path).framework == "tensorflow", "a container has a home of its own"
    assert with_keras_backend(script, {"KERAS_HOME": "settings"}, tmp_path, home).framework == "jax"
    for broken in ("{", "[]", '{"backend": 3}'):
        (tmp_path / "settings" / "keras.json").write_text(broken)
        assert with_keras_backend(script, {"KERAS_HOME": "settings"}, tmp_path).framework == "tensorflow"


def test_backends_of_the_cpu_bring_what_they_import_and_take_no_gpu(tmp_path: Path) -> None:
    script = facts_of(tmp_path, "import keras")
    for backend, package in (("openvino", "openvino"), ("numpy", "jax")):
        assert package in with_keras_backend(script, {"KERAS_BACKEND": backend}, tmp_path).imports
        with pytest.raises(UsageError, match=f"{backend}: Keras then computes on the CPU alone") as refused:
            with_keras_backend(script, {"KERAS_BACKEND": backend}, tmp_path, gpus=True)
        assert refused.value.run is not None and "--gpus none" in refused.value.run


@pytest.mark.parametrize(
    ("typed", "intended"), [("Jax", "jax"), ("tensorfow", "tensorflow"), ("theano", "jax"), ("mxnet", "jax")]
)
def test_a_misspelt_backend_is_set_right_where_it_was_set(tmp_path: Path, typed: str, intended: str) -> None:
    for source, env, run in (
        ("import keras", {"KERAS_BACKEND": typed}, f"seatrial run … --env KERAS_BACKEND={intended}"),
        (SETS.replace("torch", typed), {}, f'write os.environ["KERAS_BACKEND"] = "{intended}" in train.py:2'),
    ):
        with pytest.raises(UsageError, match=f"KERAS_BACKEND={typed}: Keras has no such backend") as refused:
            with_keras_backend(facts_of(tmp_path, source), env, tmp_path)
        assert refused.value.run == run
