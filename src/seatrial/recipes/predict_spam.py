"""predict spam: says of messages whether they are ham or spam, with the probability.

python -m seatrial.recipes.predict_spam --models DIR "WINNER!! Call now to claim your prize"
python -m seatrial.recipes.predict_spam --models DIR < messages.txt

``seatrial run predict -- spam`` passes each line of standard input as an argument.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from seatrial.recipes.spam import LABELS, LONGEST, import_transformers
from seatrial.train import script
from seatrial.train.errors import InputError


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.predict_spam", description="Ham or spam?")
    parser.add_argument("--models", type=Path, default=script.default_folder("models"), metavar="DIR")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="without one, lines are read from standard input")
    arguments = parser.parse_args(argv)
    texts = arguments.texts or script.input_lines()
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise InputError("no input text", fix='seatrial run predict -- spam "text…"')
    for text, (label, probability) in zip(texts, predict(arguments.models / "spam", texts), strict=True):
        print(f"{label}\t{probability:.4f}\t{text}", flush=True)
    return 0


@torch.no_grad()
def predict(folder: Path, texts: list[str]) -> list[tuple[str, float]]:
    """The likelier label of each text and its probability. Raises InputError when no model was saved there."""
    if not (folder / "config.json").is_file():
        raise InputError(f"no model in {folder}", fix="seatrial run spam --from-scratch")
    transformers = import_transformers()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = transformers.BertForSequenceClassification.from_pretrained(folder).to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    answers = []
    for first in range(0, len(texts), 64):
        batch = tokenizer(
            texts[first : first + 64], truncation=True, max_length=LONGEST, padding=True, return_tensors="pt"
        )
        inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
        likeliest = model(**inputs).logits.softmax(1).max(1)
        answers += [(LABELS[int(n)], float(p)) for p, n in zip(likeliest.values, likeliest.indices, strict=True)]
    return answers


if __name__ == "__main__":
    script.run(main)
