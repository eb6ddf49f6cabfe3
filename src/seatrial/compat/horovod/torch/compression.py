"""What gradients are sent as. A script may bring a compressor of its own with the same two methods."""

from typing import Any, Tuple

import torch


class Compressor:
    """How a tensor is made smaller for its way, and what it was again."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """(what is sent, what ``decompress`` needs to know)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type again."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sent as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sent in half precision; whole numbers stay as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class Compression:
    """The two that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
