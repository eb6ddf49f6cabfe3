"""Train the classifier on messages labelled ham or spam, and save it in the project's folder."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from classifier import LABELS, Classifier, tokens
from torch import nn

#: Sentences to make messages of where the SMS Spam Collection is not there.
HAM = ("see you at {}", "are you coming {}?", "i left the {} on the table", "call me when you are at {}", "ok, {} then")
SPAM = ("WIN a free {} now! text YES to {n}", "claim your {} prize, call {n}", "urgent: your {} won £{n}, reply now")
WORDS = ("lunch", "home", "the office", "phone", "holiday", "ticket", "seven", "the station", "mum", "tomorrow")


def made_up(count: int) -> list[tuple[str, str]]:
    """Return labels and messages; one in seven is spam, as in the collection."""
    random.seed(0)
    labels = ["spam" if number % 7 == 0 else "ham" for number in range(count)]
    sentences = {"ham": HAM, "spam": SPAM}
    return [
        (label, random.choice(sentences[label]).format(random.choice(WORDS), n=random.randint(1000, 99999)))
        for label in labels
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/data"), help="folder of the file SMSSpamCollection")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    file = options.data / "SMSSpamCollection"
    if file.exists():
        labelled = [tuple(line.split("\t", 1)) for line in file.read_text(encoding="utf-8").splitlines()]
    else:
        labelled = made_up(1400)
    print(f"{len(labelled)} messages {f'from {file}' if file.exists() else 'made up'}")
    random.Random(0).shuffle(labelled)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words = tokens([message for _, message in labelled]).to(device)
    answers = torch.tensor([LABELS.index(label) for label, _ in labelled], device=device)
    held_out = len(labelled) // 5

    torch.manual_seed(0)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options.out.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, options.epochs + 1):
        model.train()
        for chosen in (held_out + torch.randperm(len(words) - held_out, device=device)).split(64):
            loss = nn.functional.cross_entropy(model(words[chosen]), answers[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found = torch.cat([model(part).argmax(1) for part in words[:held_out].split(256)])
        spam = answers[:held_out] == 1
        caught, alarms = found[spam].float().mean().item(), found[~spam].float().mean().item()
        print(f"epoch {epoch}: {caught:.1%} of spam found, {alarms:.1%} of ham taken for spam, on {device}", flush=True)
    torch.save(model.state_dict(), options.out / "spam.pth")
    print(f"saved to {options.out / 'spam.pth'}")


if __name__ == "__main__":
    main()
