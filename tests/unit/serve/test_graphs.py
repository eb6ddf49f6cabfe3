"""The buffers around CUDA graphs, with a stand-in for the graph that runs its kernels on the CPU at each replay."""

import numpy as np
import pytest
import torch

from seatrial.serve.runners import graphs, texts
from seatrial.serve.runners.graphs import GraphedRunner, batch_sizes
from seatrial.serve.runners.texts import Bert, Bucketed, PackedGraphs

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Replayed:
    """Runs what was captured, into the tensors that capturing gave."""

    def __init__(self, run):
        self._run, self.outputs = run, run()

    def replay(self):
        for output, new in zip(self.outputs, self._run(), strict=True):
            output.copy_(new)

    def pool(self):
        return 0, 1


@pytest.fixture(autouse=True)
def graphs_on_cpu(monkeypatch):
    def capture(run, pool=None):
        graph = Replayed(run)
        return graph, graph.outputs

    class Stream:
        def synchronize(self):
            pass

    zeros, empty = torch.zeros, torch.empty
    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(texts, "capture", capture)
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())


def bert_of(vocabulary=50, hidden=16, layers=2, heads=2):
    """Random weights with the names of transformers' BertForSequenceClassification."""
    drawn = torch.Generator().manual_seed(0)

    def made(*shape):
        return torch.randn(*shape, generator=drawn) * 0.3

    tensors = {
        "bert.embeddings.word_embeddings.weight": made(vocabulary, hidden),
        "bert.embeddings.position_embeddings.weight": made(128, hidden),
        "bert.embeddings.token_type_embeddings.weight": made(2, hidden),
    }
    linear = {"bert.pooler.dense": (hidden, hidden), "classifier": (2, hidden)}
    norms = ["bert.embeddings.LayerNorm"]
    for number in range(layers):
        at = f"bert.encoder.layer.{number}"
        linear |= {f"{at}.attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        linear |= {f"{at}.attention.output.dense": (hidden, hidden)}
        linear |= {f"{at}.intermediate.dense": (4 * hidden, hidden), f"{at}.output.dense": (hidden, 4 * hidden)}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name, shape in linear.items():
        tensors |= {f"{name}.weight": made(*shape), f"{name}.bias": made(shape[0])}
    for name in norms:
        tensors |= {f"{name}.weight": 1 + made(hidden), f"{name}.bias": made(hidden)}
    config = {"hidden_act": "gelu", "num_attention_heads": heads, "layer_norm_eps": 1e-12, "num_hidden_layers": layers}
    return Bert(tensors, config, CPU, torch.float32), tensors


def texts_of(lengths, seed=0):
    drawn = np.random.default_rng(seed)
    return [drawn.integers(0, 50, length, dtype=np.int32) for length in lengths]


def test_bert_is_what_torchs_own_encoder_computes():
    bert, tensors = bert_of()
    layers = []
    for number in range(2):
        at = f"bert.encoder.layer.{number}"
        layer = torch.nn.TransformerEncoderLayer(
            16, 2, 64, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        three = [f"{at}.attention.self.{name}" for name in ("query", "key", "value")]
        state = {
            "self_attn.in_proj_weight": torch.cat([tensors[f"{name}.weight"] for name in three]),
            "self_attn.in_proj_bias": torch.cat([tensors[f"{name}.bias"] for name in three]),
        }
        pairs = {
            "self_attn.out_proj": "attention.output.dense",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm1": "attention.output.LayerNorm",
            "norm2": "output.LayerNorm",
        }
        for ours, theirs in pairs.items():
            state |= {f"{ours}.{kind}": tensors[f"{at}.{theirs}.{kind}"] for kind in ("weight", "bias")}
        layer.load_state_dict(state)
        layers.append(layer.eval())
    (text,) = texts_of([7])
    embedded = tensors["bert.embeddings.word_embeddings.weight"][torch.from_numpy(text).long()]
    embedded = embedded + tensors["bert.embeddings.position_embeddings.weight"][:7]
    embedded = embedded + tensors["bert.embeddings.token_type_embeddings.weight"][0]
    norm = [tensors[f"bert.embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")]
    with torch.no_grad():
        hidden = torch.nn.functional.layer_norm(embedded, (16,), *norm, 1e-12)[None]
        for layer in layers:
            hidden = layer(hidden)
        first = tensors["bert.pooler.dense.weight"] @ hidden[0, 0] + tensors["bert.pooler.dense.bias"]
        logits = tensors["classifier.weight"] @ first.tanh() + tensors["classifier.bias"]
    np.testing.assert_allclose(Bucketed(bert, CPU)([text])[0], logits.softmax(0).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("most", "batches"),
    [  # a large batch leaves places behind the rows of a small one; the last is more than the largest graph
        (32, ([100] * 32, [2], [128, 1, 127, 64, 64, 63, 65], [22] * 31, [128] * 32, [3, 5])),
        (128, ([128] * 100,)),
    ],
)
def test_packed_texts_answer_as_each_one_alone_after_any_batch(most, batches):
    bert, _ = bert_of()
    alone, packed = Bucketed(bert, CPU), PackedGraphs(bert, max_batch=most, width=128, device=CPU)
    packed.prepare()
    for number, lengths in enumerate(batches):
        given = texts_of(lengths, seed=number)
        np.testing.assert_allclose(packed(given), np.concatenate([alone([text]) for text in given]), atol=1e-5)


def test_a_graphed_batch_gives_each_row_its_own_answer_at_every_size():
    run = GraphedRunner(
        lambda inputs: (inputs[0] * 2 + inputs[1][:, None],), [((3,), torch.float32), ((), torch.float32)], 12, CPU
    )
    run.prepare()
    assert run.captured == batch_sizes(12) == (1, 2, 4, 8, 12)
    for count in (12, 1, 5, 12, 3):
        rows = [np.full(3, number, np.float32) for number in range(count)]
        ones = [np.float32(100 * number).reshape(()) for number in range(count)]
        (found,) = run([rows, ones])
        assert found.tolist() == [[102.0 * number] * 3 for number in range(count)]
    alone = GraphedRunner(lambda inputs: (inputs[0] + 1,), [((2,), torch.float32)], 4, CPU, only=4)
    alone.prepare()
    assert alone.captured == (4,), "a program of one batch size"
