"""BERT for classifying texts, several texts in a row: what transformers computes, without importing it.

Texts of different lengths lie one behind the other in rows of W places, and attend to their own tokens only. So
little is padding (about a twentieth; a batch padded to its longest text would be four fifths), and all that a
CUDA graph depends on is the number of rows. Shapes: R rows, W places a row, N texts, D hidden numbers, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.serve.errors import ServeError


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; the three projections of attention are one product."""

    qkv: tuple[Tensor, Tensor]
    mixed: tuple[Tensor, Tensor]
    mixed_norm: tuple[Tensor, Tensor]
    wide: tuple[Tensor, Tensor]
    narrow: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]


class Bert:
    """A BertForSequenceClassification's state dict, ready to run in one number format."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], device: torch.device, dtype: torch.dtype
    ) -> None:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            return put(tensors[f"{name}.weight"]), put(tensors[f"{name}.bias"])

        def put(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype)

        try:
            if config["hidden_act"] != "gelu" or config.get("position_embedding_type", "absolute") != "absolute":
                raise ServeError("this BERT has another activation or other positions than the served one")
            self._heads, self._epsilon = int(config["num_attention_heads"]), float(config["layer_norm_eps"])
            self.words = put(tensors["bert.embeddings.word_embeddings.weight"])
            # Every token is of the first of BERT's two sentences.
            kinds = tensors["bert.embeddings.token_type_embeddings.weight"][0]
            self.positions = put(tensors["bert.embeddings.position_embeddings.weight"] + kinds)
            self._embedded = pair("bert.embeddings.LayerNorm")
            self._layers = []
            for number in range(int(config["num_hidden_layers"])):
                at = f"bert.encoder.layer.{number}"
                three = [pair(f"{at}.attention.self.{name}") for name in ("query", "key", "value")]
                self._layers.append(
                    Layer(
                        (torch.cat([weight for weight, _ in three]), torch.cat([bias for _, bias in three])),
                        pair(f"{at}.attention.output.dense"),
                        pair(f"{at}.attention.output.LayerNorm"),
                        pair(f"{at}.intermediate.dense"),
                        pair(f"{at}.output.dense"),
                        pair(f"{at}.output.LayerNorm"),
                    )
                )
            self._pooler, self._classifier = pair("bert.pooler.dense"), pair("classifier")
        except (KeyError, TypeError, ValueError) as error:
            raise ServeError(f"the model is no BERT classifier: {error} is missing or wrong") from error

    @property
    def vocabulary(self) -> int:
        """Token numbers are below it."""
        return len(self.words)

    def __call__(self, tokens_RW: Tensor, positions_RW: Tensor, texts_RW: Tensor, firsts_N: Tensor) -> Tensor:
        """Logits [N, K] in fp32.

        Args:
            texts_RW: which text a token is of; padding is one of its own.
            firsts_N: where each text begins, in R × W counted along.
        """
        width = self.words.shape[1]
        hidden = F.embedding(tokens_RW, self.words) + F.embedding(positions_RW, self.positions)
        hidden = F.layer_norm(hidden, (width,), *self._embedded, self._epsilon)
        apart = texts_RW[:, None, :, None] != texts_RW[:, None, None, :]
        mask_R1WW = torch.zeros(apart.shape, dtype=hidden.dtype, device=hidden.device)
        mask_R1WW = mask_R1WW.masked_fill(apart, float("-inf"))
        for layer in self._layers:
            query, key, value = (
                part.unflatten(2, (self._heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
                for part in F.linear(hidden, *layer.qkv).chunk(3, 2)
            )
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_R1WW)
            mixed = F.linear(mixed.transpose(1, 2).flatten(2), *layer.mixed)
            hidden = F.layer_norm(hidden + mixed, (width,), *layer.mixed_norm, self._epsilon)
            wide = F.gelu(F.linear(hidden, *layer.wide))
            hidden = F.layer_norm(hidden + F.linear(wide, *layer.narrow), (width,), *layer.norm, self._epsilon)
        firsts_ND = hidden.flatten(0, 1).index_select(0, firsts_N)
        return F.linear(F.linear(firsts_ND, *self._pooler).tanh(), *self._classifier).float()
