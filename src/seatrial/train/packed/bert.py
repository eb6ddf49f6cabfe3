"""A BERT classifier over packed texts: the loss, and every gradient written by hand into flat arrays.

It computes the same as BertForSequenceClassification, dropout included, over real tokens alone. Layers and names stay:
evaluation, saving and everything else go on using the model. Products are cuBLAS', the rest are kernels of this
library, but for attention that these do not take; a step has 21 kernels a layer.
Shapes: T tokens of all texts, B texts, E numbers a token, F in between, H heads, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.distributed import Ranks
from seatrial.train.kernels import bert, flat_adam, runtime
from seatrial.train.kernels.flat_adam import Rule
from seatrial.train.kernels.ops import REALS, KernelModule
from seatrial.train.packed.texts import Packed, PackedTexts
from seatrial.train.packed.weights import FlatWeights

#: Numbers a token: 48 for each lane of a warp, in registers.
WIDEST = 48 * 32

#: Gradients that may still be computed while the backward pass goes on: those of two layers, each in five launches.
MOST_BESIDE = 10


class BertLayer:
    """The weights of a layer by their names here, and its normalisations."""

    def __init__(self, layer: Any) -> None:
        attention = layer.attention.self
        inputs = (attention.query, attention.key, attention.value)
        mixed, wide, back = layer.attention.output.dense, layer.intermediate.dense, layer.output.dense
        first, second = layer.attention.output.LayerNorm, layer.output.LayerNorm
        self.first_norm, self.second_norm = first, second
        self.inputs, self.input_biases = [each.weight for each in inputs], [each.bias for each in inputs]
        self.mixed, self.wide, self.back = mixed.weight, wide.weight, back.weight
        self.mixed_bias, self.wide_bias, self.back_bias = mixed.bias, wide.bias, back.bias
        #: Its parameters of one dimension, as they lie.
        self.vectors = (
            *self.input_biases, mixed.bias, first.weight, first.bias, wide.bias, back.bias, second.weight, second.bias
        )  # fmt: skip


class PackedBert:
    """The loss of a BertForSequenceClassification over packed texts.

    ``model``: its parameters become views of ``weights``. ``dtype``: of the products, fp32 or bf16.
    """

    def __init__(
        self, model: Any, dtype: torch.dtype, ranks: Ranks, source: PackedTexts, *, weight_decay: float
    ) -> None:
        config = model.config
        self.heads = int(config.num_attention_heads)
        self.epsilon = float(config.layer_norm_eps)
        self.hidden_share, self.attention_share = config.hidden_dropout_prob, config.attention_probs_dropout_prob
        last = config.classifier_dropout
        self.last_share = self.hidden_share if last is None else last
        self.embeddings, self.pooler, self.classifier = model.bert.embeddings, model.bert.pooler.dense, model.classifier
        self.layers = [BertLayer(each) for each in model.bert.encoder.layer]
        words, *tables = _tables(self.embeddings)
        rest = [each for each in model.parameters() if all(each is not table for table in (words, *tables))]
        matrices = [each for each in rest if each.ndim > 1]
        others = [each for each in rest if each.ndim <= 1]
        rule, steps = Rule((0.9, 0.999), 1e-8, weight_decay), len(source.spans)
        later = [self.layers[0].mixed, *(layer.inputs[0] for layer in self.layers[1:])]
        self.weights = FlatWeights(
            words, tables, matrices, others, dtype, ranks, slots=source.slots, steps=steps, rule=rule, later=later
        )
        for each in self._modules() if self.weights.flat.is_cuda else ():
            runtime.build(each.text, self.weights.flat.device.index)
        # Gives the loss a backward pass; nothing is learned by it.
        self._anchor = torch.zeros((), device=self.weights.flat.device, requires_grad=True)

    def loss(self, model: nn.Module, batch: Packed, labels_B: Tensor) -> Tensor:
        """Return the mean cross-entropy: a ``step.Loss``. ``model`` is the one that this was made of."""
        result: Tensor = _Loss.apply(self._anchor, self, batch, labels_B)  # type: ignore[no-untyped-call]
        return result

    def _modules(self) -> list[KernelModule]:
        """Return the kernels, with dropout and without."""
        dtype, width = self.weights.dtype, self.weights.words.shape[1]
        found = [bert.gelu_module(dtype), bert.token_sums_module(dtype, width)]
        found.append(flat_adam.kernels(dtype, self.weights.rule))
        found += [bert.norm_module(dtype, width, share) for share in (self.hidden_share, 0.0)]
        if dtype == torch.bfloat16:
            found += [bert.attention_module(share) for share in (self.attention_share, 0.0)]
        return found

    @torch.no_grad()
    def logits(self, model: nn.Module, batch: Packed) -> Tensor:
        """Return logits [B, K] of ``model``, the one that this was made of, without dropout."""
        keys = torch.zeros(3 * len(self.layers) + 1, 2, dtype=torch.int32, device=self.weights.flat.device)
        x, _, _ = self._encoded(batch, keys, 0.0, 0.0)
        value = self.weights.value
        firsts = x.index_select(0, batch.starts[:-1])
        pooled = torch.addmm(value(self.pooler.bias), firsts, value(self.pooler.weight).t()).tanh()
        return torch.addmm(value(self.classifier.bias), pooled, value(self.classifier.weight).t()).float()

    def forward(self, batch: Packed, labels_B: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss, and what the backward pass needs."""
        keys = bert.dropout_keys(3 * len(self.layers) + 1, labels_B.device)
        self.weights.begin(batch.there_S)
        x, first, kept = self._encoded(batch, keys, self.hidden_share, self.attention_share)
        loss, head = self._head(x, batch, labels_B)
        return loss, {"batch": batch, "keys": keys, "first": first, "kept": kept, "head": head}

    def _encoded(
        self, batch: Packed, keys: Tensor, hidden_share: float, attention_share: float
    ) -> tuple[Tensor, list[Tensor], list[tuple[Any, ...]]]:
        """Return the last layer's result [T, E], and the backward pass's needs of the embeddings and of each layer."""
        value, dtype = self.weights.value, self.weights.dtype
        norm = self.embeddings.LayerNorm
        x, *first = bert.norm_embedded(
            batch.tokens_T, batch.positions_T, _tables(self.embeddings), norm.weight, norm.bias, keys,
            3 * len(self.layers), hidden_share, self.epsilon, dtype,
        )  # fmt: skip
        kept = []
        for number, layer in enumerate(self.layers):
            place = 3 * number
            self.weights.wait_for(layer.inputs[0])
            inputs = torch.addmm(value(*layer.input_biases), x, value(*layer.inputs).t())
            mixed, logs = bert.attention(inputs, batch.starts, self.heads, batch.longest, keys, place, attention_share)
            self.weights.wait_for(layer.mixed)
            out = mixed @ value(layer.mixed).t()
            norm = layer.first_norm
            between, *first_norm = bert.norm_residual(
                out, layer.mixed_bias, x, norm.weight, norm.bias, keys, place + 1, hidden_share, self.epsilon
            )
            wide = between @ value(layer.wide).t()
            bent = bert.gelu(wide, layer.wide_bias)
            out = bent @ value(layer.back).t()
            norm = layer.second_norm
            after, *second_norm = bert.norm_residual(
                out, layer.back_bias, between, norm.weight, norm.bias, keys, place + 2, hidden_share, self.epsilon
            )
            kept.append((x, inputs, mixed, logs, first_norm, between, wide, bent, second_norm))
            x = after
        return x, first, kept

    def backward(self, saved: dict[str, Any], grad: Tensor) -> None:
        """Write or add every gradient."""
        batch, keys = saved["batch"], saved["keys"]
        add = not self.weights.fresh
        dx = self._head_back(saved["head"], batch, grad, add=add)
        for number in reversed(range(len(self.layers))):
            dx = self._layer_back(number, saved["kept"].pop(), batch, keys, dx, add=add)
            self.weights.side_stream.wait(but=MOST_BESIDE)
            self.weights.finished(self.layers[number].inputs[0])
        self._embeddings_back(saved["first"], batch, keys, dx, add=add)
        self.weights.side_stream.wait()
        self.weights.fresh = False

    def _layer_back(
        self, number: int, kept: tuple[Any, ...], batch: Packed, keys: Tensor, dy: Tensor, *, add: bool
    ) -> Tensor:
        x, inputs, mixed, logs, first_norm, between, wide, bent, second_norm = kept
        layer, place, value, gradient = self.layers[number], 3 * number, self.weights.value, self.weights.gradient
        dz, dproduct, back_parts = bert.norm_back(
            dy, second_norm, layer.second_norm.weight, keys, place + 2, self.hidden_share
        )
        dbent = dproduct @ value(layer.back)
        self._product(dproduct, bent, gradient(layer.back), add=add)
        dwide, wide_parts = bert.gelu_back(dbent, wide, layer.wide_bias)
        dbetween = _sum(dz, dwide, value(layer.wide), in_place=dz is not dproduct)
        self._product(dwide, between, gradient(layer.wide), add=add)
        dz, dproduct, mixed_parts = bert.norm_back(
            dbetween, first_norm, layer.first_norm.weight, keys, place + 1, self.hidden_share
        )
        dmixed = dproduct @ value(layer.mixed)
        self._product(dproduct, mixed, gradient(layer.mixed), add=add)
        dinputs, input_parts = bert.attention_back(
            dmixed, inputs, logs, batch.starts, self.heads, batch.longest, keys, place, self.attention_share
        )
        dx = _sum(dz, dinputs, value(*layer.inputs), in_place=dz is not dproduct)
        self._product(dinputs, x, gradient(*layer.inputs), add=add)
        parts = [input_parts, mixed_parts, wide_parts, back_parts]
        with self.weights.side_stream.running(*parts):
            bert.sum_parts(parts, gradient(*layer.vectors), add=add)
        return dx

    def _product(self, left: Tensor, right: Tensor, to: Tensor, *, add: bool) -> None:
        """Compute a matrix's gradient on the second stream: nothing reads it before the backward pass ends."""
        with self.weights.side_stream.running(left, right):
            product(left, right, to, add=add)

    def _embeddings_back(self, first: list[Tensor], batch: Packed, keys: Tensor, dy: Tensor, *, add: bool) -> None:
        norm, weights = self.embeddings.LayerNorm, self.weights
        place = 3 * len(self.layers)
        dz, _, parts = bert.norm_back(dy, first, norm.weight, keys, place, self.hidden_share, after=True)
        _, positions, kinds = _tables(self.embeddings)
        width = dz.shape[1]
        with self.weights.side_stream.running(dz, parts, *batch.by_position):
            bert.token_sums(dz, *batch.by_position, weights.gradient(positions)[: batch.longest], add=add)
            bert.sum_parts([parts[:, :width].contiguous()], weights.gradient(kinds)[0], add=add)
            bert.sum_parts([parts[:, width:].contiguous()], weights.gradient(norm.weight, norm.bias), add=add)
        bert.token_sums(dz, *batch.by_token, weights.word_gradients, add=add)

    def _head(self, x: Tensor, batch: Packed, labels_B: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        value = self.weights.value
        places = batch.starts[:-1]
        firsts = x.index_select(0, places)
        pooled = torch.addmm(value(self.pooler.bias), firsts, value(self.pooler.weight).t()).tanh()
        dropped, mask = torch.native_dropout(pooled, self.last_share, self.last_share > 0)
        logits = torch.addmm(value(self.classifier.bias), dropped, value(self.classifier.weight).t()).float()
        logs = logits.log_softmax(1)
        loss = F.nll_loss(logs, labels_B)
        return loss, (x, places, firsts, pooled, dropped, mask, logs, labels_B)

    def _head_back(self, head: tuple[Any, ...], batch: Packed, grad: Tensor, *, add: bool) -> Tensor:
        x, places, firsts, pooled, dropped, mask, logs, labels_B = head
        value, gradient = self.weights.value, self.weights.gradient
        chosen = torch.zeros_like(logs).scatter_(1, labels_B[:, None], 1.0)
        dlogits = ((logs.exp() - chosen) * (grad / len(labels_B))).to(x.dtype)
        product(dlogits, dropped, gradient(self.classifier.weight), add=add)
        _put(gradient(self.classifier.bias), dlogits.sum(0), add=add)
        dpooled = dlogits @ value(self.classifier.weight)
        if self.last_share:
            dpooled = dpooled * mask / (1 - self.last_share)
        dpooled = dpooled * (1 - pooled * pooled)
        product(dpooled, firsts, gradient(self.pooler.weight), add=add)
        _put(gradient(self.pooler.bias), dpooled.sum(0), add=add)
        return torch.zeros_like(x).index_copy_(0, places.long(), dpooled @ value(self.pooler.weight))


def takes(model: Any, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why this model's loss cannot be computed here, or None."""
    config = model.config
    if device.type != "cuda":
        return "packed ones need a GPU"
    if dtype not in REALS:
        return "the number format is fp16"
    if reason := runtime.unavailable():
        return f"kernels cannot be compiled here ({reason})"
    if config.hidden_act != "gelu":
        return f"its activation is {config.hidden_act}, not gelu"
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        return f"its positions are {config.position_embedding_type}, not absolute"
    if config.hidden_size % 8 or config.intermediate_size % 8:
        return "its widths are not multiples of 8"
    if config.hidden_size > WIDEST:
        return f"it is wider than {WIDEST}"
    return None


class _Loss(torch.autograd.Function):
    """Joins the hand-written backward pass to autograd's: ``loss.backward()`` begins it, scaled by what follows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, packed: PackedBert, batch: Packed, labels_B: Tensor) -> Tensor:
        loss, ctx.saved = packed.forward(batch, labels_B)
        ctx.packed = packed
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        ctx.packed.backward(ctx.saved, grads[0])
        del ctx.saved
        return None, None, None, None


def product(left: Tensor, right: Tensor, to: Tensor, *, add: bool) -> None:
    """Multiply leftᵀ right, written to ``to`` or added."""
    if add:
        to.addmm_(left.t(), right)
    else:
        torch.mm(left.t(), right, out=to)


def _sum(base: Tensor, left: Tensor, right: Tensor, *, in_place: bool) -> Tensor:
    """Return base + left right; in place of ``base`` if nothing else holds it."""
    return base.addmm_(left, right) if in_place else torch.addmm(base, left, right)


def _put(to: Tensor, value: Tensor, *, add: bool) -> None:
    if add:
        to.add_(value)
    else:
        to.copy_(value)


def _tables(embeddings: Any) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Return the embeddings of words, positions and kinds."""
    tables = embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings
    words, positions, kinds = (table.weight for table in tables)
    return words, positions, kinds
