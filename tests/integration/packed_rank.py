"""One of several ranks that train a small BERT on packed texts: python packed_rank.py OUT ROWS_PER_RANK."""

import sys
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

import cuda_on_cpu
from seatrial.train.data.texts import TextSet
from seatrial.train.distributed import ranks
from seatrial.train.kernels import runtime
from seatrial.train.packed.bert import PackedBert
from seatrial.train.packed.texts import PackedTexts
from seatrial.train.packed.weights import FlatAdamW
from seatrial.train.precision import Precision
from seatrial.train.step import Step


def main(out: Path, rows: int) -> None:
    runtime.launch, runtime.usable = cuda_on_cpu.launch, lambda device: True
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(1, 60, (2 + number % 7,), generator=generator).tolist() for number in range(26)]
    data = TextSet.of(tokens, torch.arange(26) % 2)
    with ranks() as group:
        precision, source = Precision("fp32", group.device), PackedTexts(data, rows, group, 0)
        bert = PackedBert(model, torch.float32, group, source, weight_decay=0.01)
        step = Step(
            model, bert.loss, FlatAdamW(bert.weights, 1e-3), source, ranks=group, precision=precision, epochs=3,
            clip_norm=1.0, gradients=bert.weights,
        )  # fmt: skip
        losses = []
        # All texts in one step: which rank has which of them then does not change the gradient.
        for epoch in range(1, 21):
            source.start(epoch, 0)
            step.start_epoch((epoch - 1) * len(source.spans), 0)
            for span in source.spans:
                step.run_fixed(span.shape)
            shares = torch.tensor([span.shape.share for span in source.spans])
            losses += (group.sum(step.losses * shares) / group.world).tolist()
        bert.weights.settle()
        torch.save({"losses": losses, "model": model.state_dict()}, out / f"rank-{group.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
