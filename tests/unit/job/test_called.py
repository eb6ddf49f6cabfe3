"""Code that whoever imports a module calls counts as code that runs: a served class, a factory of networks."""

from __future__ import annotations

from pathlib import Path

from seatrial.job.model import Target
from seatrial.job.script import script_facts

SERVED = """
import nets
class Base:
    def load(self):
        import timm
class Model(Base):
    def __init__(self):
        self.read()
    def read(self):
        import sklearn
    def predict(self, batch):
        from PIL import Image
        nets.make()
    def train(self):
        import lightning
def make_model():
    import einops
"""


def test_what_a_module_is_imported_for_is_called(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVED)
    (tmp_path / "nets.py").write_text("def make():\n    import own\n")
    (tmp_path / "own.py").write_text("import transformers\n")
    target = Target(kind="script", value="serve.py")
    assert script_facts(target, tmp_path).imports == ()
    made = script_facts(target, tmp_path, calls=("Model", "Model.load", "Model.predict", "Model.example"))
    assert made.imports == ("PIL", "sklearn", "timm", "transformers") and "own.py" in made.files
    assert "lightning" not in made.imports + made.optional_imports
    assert script_facts(target, tmp_path, calls=("make_model",)).imports == ("einops",)
