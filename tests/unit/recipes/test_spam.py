"""spam: reading messages, and training a tiny BERT whose forward pass is the library's own."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial.models import predict  # noqa: E402
from seatrial.recipes import spam  # noqa: E402
from seatrial.train.errors import DataError, InputError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [f"ham\tsee you at {n} then, love" if n % 2 else f"spam\tWINNER claim prize {n} now" for n in range(200)]
    (tmp_path / "SMSSpamCollection").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_reads_label_tab_text(data: Path) -> None:
    texts, labels = spam.read_messages(data)
    assert len(texts) == 200 and texts[1] == "see you at 1 then, love" and labels[:2].tolist() == [1, 0]


def test_bad_messages(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks SMSSpamCollection"):
        spam.read_messages(tmp_path)
    (tmp_path / "SMSSpamCollection").write_text("ham\thello\nmaybe\twhat\n")
    with pytest.raises(DataError, match="line 2 is not ham or spam"):
        spam.read_messages(tmp_path)


def test_predict_without_input_or_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("\n  \n"))
    with pytest.raises(InputError, match="no input") as refused:
        predict.main(["spam", "--models", str(tmp_path)])
    assert refused.value.exit_code == 2
    with pytest.raises(InputError, match="no model of spam"):
        predict.main(["spam", "--models", str(tmp_path), "hello"])


def test_trains_from_scratch_saves_and_predicts(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setitem(spam.SHAPES["small"], "num_hidden_layers", 1)
    folders = ["--data", str(data), "--models", str(tmp_path)]
    assert spam.main([*folders, "--from-scratch", "--epochs", "4", "--batch", "16"]) == 0
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "spam").iterdir()}
    capsys.readouterr()
    texts = ["WINNER claim prize 77 now", "see you at 5 then, love"]
    assert predict.main(["spam", "--models", str(tmp_path), *texts]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["spam", "ham"]


def test_our_forward_pass_is_the_librarys() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=50, **spam.SHAPES["small"])
    model = transformers.BertForSequenceClassification(config).eval()
    tokens = torch.randint(1, 50, (4, 16))
    real = torch.arange(16) < torch.tensor([[16], [3], [9], [1]])
    ours = spam.logits(model, (tokens, real))
    theirs = model(input_ids=tokens, attention_mask=real.long()).logits
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_weights_that_are_not_there(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="no pretrained weights at"):
        spam.main(["--data", str(data), "--models", str(tmp_path), "--weights", str(tmp_path / "none")])
