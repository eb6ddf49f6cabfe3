"""The baseline: BERT fine-tuning with the stock Trainer of transformers, everything padded to 128 tokens.

    python benchmarks/tutorial_spam.py --data DIR --vocabulary vocab.txt --batch 16

Needs transformers and accelerate. Random weights of BERT-base: the speed is the same. Prints one JSON line.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, Trainer, TrainingArguments

from seatrial.recipes.spam import read_messages


def main():
    """Train one epoch and print samples a second as the Trainer measures them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    texts, labels = read_messages(arguments.data)
    tokenizer = BertTokenizerFast(vocab_file=str(arguments.vocabulary))
    encoded = tokenizer(texts, truncation=True, max_length=128, padding="max_length")
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
    ]
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=2))
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder,
            per_device_train_batch_size=arguments.batch,
            max_steps=arguments.steps,
            bf16=torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        metrics = Trainer(model, options, train_dataset=rows).train().metrics
    print(json.dumps({"samples_per_s": metrics["train_samples_per_second"], "batch": arguments.batch}))


if __name__ == "__main__":
    main()
