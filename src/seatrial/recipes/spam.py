"""spam: fine-tunes a BERT classifier on the SMS Spam Collection, or trains a small one from nothing.

    python -m seatrial.recipes.spam --data DIR --models DIR --weights FOLDER_OR_HUB_NAME
    python -m seatrial.recipes.spam --data DIR --models DIR --from-scratch

The messages average 22 tokens: batches are made of messages of like length, so that little is padding, and the step of
each length is captured once. Shapes: N messages, B rows, L tokens a row, H heads, D numbers a head.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.train import early_start

if __name__ == "__main__":
    early_start.begin()

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from seatrial.train import options
from seatrial.train.data.texts import TestTexts, Texts, TextSet
from seatrial.train.distributed import Ranks
from seatrial.train.errors import EXIT_TERMINATED, DataError, InputError, first_line
from seatrial.train.evaluation import evaluate
from seatrial.train.loop import Settings, fit, session, step_options
from seatrial.train.memory import summary
from seatrial.train.optim.optimizer import adamw
from seatrial.train.optim.schedules import triangle
from seatrial.train.packed.bert import PackedBert, takes
from seatrial.train.packed.texts import PackedTexts, packed_tests
from seatrial.train.packed.weights import FlatAdamW
from seatrial.train.precision import Precision
from seatrial.train.saving.examples import EXAMPLES, Examples, outputs_on_cpu, save_examples
from seatrial.train.saving.model_files import weights_digest
from seatrial.train.step import Step

LABELS = ("ham", "spam")
FILES = ("SMSSpamCollection", "SMSSpamCollection.txt", "spam.tsv")
#: The collection has 0.5 MB.
MOST_BYTES = 50_000_000
#: Every fifth message is for the test: the collection is shuffled already (1,115 of 5,574).
TEST_EVERY = 5
#: Tokens kept of a message; 99.9 % of the collection's are shorter with BERT's vocabulary.
LONGEST = 128
WEIGHT_DECAY, WARMUP, CLIP_NORM = 0.01, 0.1, 1.0
#: Sizes of ``--shape``; base is BERT-base (Devlin et al. 2019, arXiv:1810.04805).
SHAPES = {
    "small": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
#: Word pieces learned from the training messages when no vocabulary is given.
OWN_VOCABULARY = 8000
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    arguments = parse(argv)
    texts, labels = read_messages(arguments.data)
    with session(arguments) as (group, precision, trackers):
        trained = [number % TEST_EVERY != TEST_EVERY - 1 for number in range(len(texts))]
        tokenizer = tokenizer_of(arguments, [text for text, keep in zip(texts, trained, strict=True) if keep])
        model = model_of(arguments, len(tokenizer)).float().to(group.device)  # a folder may hold bf16
        encoded = TextSet.of(tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"], labels)
        train_set, test_set = encoded.split(torch.tensor(trained))
        source, packed = source_of(model, arguments, precision, train_set, group)
        if group.first:
            print(f"spam: {len(train_set)} messages, {source.padding:.0%} of the tokens are padding", flush=True)
            print(group.batch_words(arguments.batch), flush=True)
        step = Step(
            model,
            packed.loss if packed else partial(loss, recompute=arguments.recompute),
            FlatAdamW(packed.weights, arguments.learning_rate)
            if packed
            else adamw(model, arguments.learning_rate, WEIGHT_DECAY),
            source,
            schedule=triangle(WARMUP),
            clip_norm=CLIP_NORM,
            gradients=packed.weights if packed else None,
            **step_options(arguments, group, precision),
        )
        tests = packed_tests(test_set, group) if packed else TestTexts(test_set, group)
        predict = packed.logits if packed else logits
        settings = Settings.from_arguments(arguments)
        outcome = fit(step, lambda: evaluate(model, tests, group, precision, predict), trackers, settings)
        if outcome.terminated:
            return EXIT_TERMINATED
        if group.first:
            rate = outcome.examples / (outcome.train_s or 1.0)  # 0 s: all epochs were done before
            print(f"test accuracy {outcome.metrics['accuracy']:.2%}, {rate:,.0f} messages/s\n{summary(group.device)}")
            folder = arguments.models / "spam"
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # each in memory of its own
            model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
            tokenizer.save_pretrained(folder)
            save_examples(examples(model, test_set), folder / "model.safetensors")
            print(f"saved {folder}: config.json, model.safetensors, tokenizer, examples", flush=True)
    return 0


def source_of(
    model: Any, arguments: argparse.Namespace, precision: Precision, train_set: TextSet, group: Ranks
) -> tuple[PackedTexts, PackedBert] | tuple[Texts, None]:
    """Return packed messages and the model's loss over them; else padded ones, and print the reason."""
    why = takes(model, precision.dtype, group.device)
    if arguments.recompute or "compile" in arguments.engine:
        why = "--recompute keeps no activations" if arguments.recompute else f"--engine {arguments.engine}"
    if why:
        if group.first:
            print(f"messages are padded: {why}", flush=True)
        return Texts(train_set, arguments.batch, group, arguments.seed), None
    source = PackedTexts(train_set, arguments.batch, group, arguments.seed)
    return source, PackedBert(model, precision.dtype, group, source, weight_decay=WEIGHT_DECAY)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the options; fill in a rate and number of epochs that suit the weights."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.spam", description="Train a spam classifier.")
    options.add_folder_options(parser)
    options.add_training_options(parser, epochs=0, batch=64, learning_rate=0.0)
    parser.add_argument("--weights", default="bert-base-uncased", help="folder or hub name of a pretrained BERT")
    parser.add_argument("--from-scratch", action="store_true", help="random weights of --shape instead")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small")
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="vocab.txt; default: learned from the messages")
    parser.add_argument(
        "--recompute", action="store_true", help="keep no activations within layers: less memory, a third more time"
    )
    arguments = options.parse(parser, argv)
    if arguments.recompute and arguments.engine not in ("auto", "eager"):
        raise InputError(f"--recompute cannot be used with --engine {arguments.engine}", fix="--engine eager")
    if arguments.recompute:
        arguments.engine = "eager"  # dropout's numbers are drawn again by the host
    if arguments.data_parallel:
        raise InputError("spam does not support --data-parallel", fix="seatrial run spam --gpus N: a rank per GPU")
    small = arguments.from_scratch and arguments.shape == "small"
    arguments.epochs = arguments.epochs or (8 if small else 3)
    arguments.learning_rate = arguments.learning_rate or (1e-3 if small else 5e-5)
    return arguments


def read_messages(folder: Path) -> tuple[list[str], Tensor]:
    """Return texts and labels (0 ham, 1 spam) of the collection: lines of label, tab, text. Raises DataError."""
    paths = [folder / place / name for place in (".", "sms_spam") for name in FILES]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        problem = f"{folder} lacks {FILES[0]} (lines of ham or spam, a tab, the text)"
        raise DataError(problem, fix="name it with --data DIR")
    texts, labels = [], []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        label, tab, text = line.partition("\t")
        if not tab or label not in LABELS:
            raise DataError(f"{path} line {number} is not ham or spam, a tab and a text: {line[:40]!r}")
        texts.append(text)
        labels.append(LABELS.index(label))
    if len(texts) < 2 * TEST_EVERY:
        raise DataError(f"{path} holds only {len(texts)} messages")
    return texts, torch.tensor(labels)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataError(f"{path} is larger than {MOST_BYTES / 1e6:.0f} MB: too large for a set of short messages")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path} line {line} is not UTF-8 text", fix=f"iconv -f latin1 -t utf-8 {path}") from error


def tokenizer_of(arguments: argparse.Namespace, texts: list[str]) -> Any:
    """Return BERT's tokenizer: of the weights, of a vocabulary file, or with word pieces learned from the texts."""
    transformers = import_transformers()
    from tokenizers import BertWordPieceTokenizer  # transformers needs it, so it is there

    if not arguments.from_scratch:
        return pretrained(transformers.AutoTokenizer, arguments.weights)
    if arguments.vocabulary:
        if not arguments.vocabulary.is_file():
            raise InputError(f"the vocabulary {arguments.vocabulary} does not exist")
        pieces = BertWordPieceTokenizer(str(arguments.vocabulary))
    else:
        pieces = BertWordPieceTokenizer()
        pieces.train_from_iterator(
            texts, vocab_size=OWN_VOCABULARY, special_tokens=list(SPECIAL_TOKENS), show_progress=False
        )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **names)


def model_of(arguments: argparse.Namespace, vocabulary: int) -> Any:
    """Return BertForSequenceClassification with two labels."""
    transformers = import_transformers()
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: number for number, name in enumerate(LABELS)}}
    if not arguments.from_scratch:
        return pretrained(transformers.BertForSequenceClassification, arguments.weights, **names)
    config = transformers.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=512, **SHAPES[arguments.shape], **names
    )
    return transformers.BertForSequenceClassification(config)


def pretrained(kind: Any, weights: str, **options: Any) -> Any:
    """Call ``kind.from_pretrained``. Raises InputError with the alternative."""
    try:
        return kind.from_pretrained(weights, **options)
    except (OSError, ValueError) as error:
        fix = "--weights FOLDER, or --from-scratch to train without"
        raise InputError(f"no pretrained weights at {weights}: {first_line(error)}", fix=fix) from error


def examples(model: nn.Module, test_set: TextSet) -> Examples:
    """Return the first test messages as token numbers, and the logits."""
    lengths_N = test_set.lengths_N[:EXAMPLES]
    longest = int(lengths_N.max())
    tokens_NL = test_set.tokens_NL[:EXAMPLES, :longest].cpu()
    real_NL = torch.arange(longest) < lengths_N[:, None].cpu()
    logits_NK = outputs_on_cpu(model, (tokens_NL, real_NL), lambda twin, inputs: logits(twin, (inputs[0], inputs[1])))
    inputs = {"input_ids": tokens_NL, "attention_mask": real_NL.long()}
    return Examples("spam", "text", weights_digest(model.state_dict()), inputs, {"logits": logits_NK}, LABELS)


def import_transformers() -> Any:
    """Import the package; raise InputError without it."""
    try:
        import transformers
    except ImportError as error:
        raise InputError("the recipe spam needs transformers", fix="pip install transformers") from error
    transformers.logging.set_verbosity_error()
    return transformers


def loss(model: nn.Module, inputs: tuple[Tensor, Tensor], labels_B: Tensor, *, recompute: bool = False) -> Tensor:
    """Return the mean cross-entropy."""
    return F.cross_entropy(logits(model, inputs, recompute=recompute).float(), labels_B)


def logits(model: Any, inputs: tuple[Tensor, Tensor], *, recompute: bool = False) -> Tensor:
    """Run BertForSequenceClassification's own forward pass, from (tokens_BL, real_BL), without waiting for the GPU.

    The library's looks at the mask on the host, which cannot be captured; a test compares the two.
    """
    tokens_BL, real_BL = inputs
    hidden = model.bert.embeddings(input_ids=tokens_BL)
    heads = model.config.num_attention_heads
    dropout = model.config.attention_probs_dropout_prob if model.training else 0.0
    mask_B11L = real_BL[:, None, None, :]

    def through(layer: Any, hidden: Tensor) -> Tensor:
        attention = layer.attention.self
        query, key, value = (
            projection(hidden).unflatten(2, (heads, -1)).transpose(1, 2)  # [B, H, L, D]
            for projection in (attention.query, attention.key, attention.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_B11L, dropout_p=dropout)
        hidden = layer.attention.output(mixed.transpose(1, 2).flatten(2), hidden)
        result: Tensor = layer.output(layer.intermediate(hidden), hidden)
        return result

    for layer in model.bert.encoder.layer:
        # Activations are computed again backwards. Dropout draws the same numbers again: the host restores its
        # generator, which no CUDA graph can do.
        hidden = checkpoint(through, layer, hidden, use_reentrant=False) if recompute else through(layer, hidden)
    result: Tensor = model.classifier(model.dropout(model.bert.pooler(hidden)))
    return result


if __name__ == "__main__":
    options.run(main)
