"""Peak rates of GPUs by their full product names: one table, in which each entry names its source."""

from __future__ import annotations

import json
import pkgutil
import re
from functools import lru_cache
from typing import Any

#: Words of NVML's product names that distinguish no products.
_BRANDS = re.compile(r"^(NVIDIA |Tesla |GeForce )+")


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    rows = json.loads(pkgutil.get_data(__name__, "gpu_peaks.json") or b"[]")
    return {name: row for row in rows for name in row["names"]}


def peak_tflops(product: str, kind: str) -> float | None:
    """Return a GPU's dense peak in TFLOP/s at boost clock, or None.

    ``product``: NVML's name, whole: a part of a GPU (MIG) and a product of a similar name have other peaks.
    ``kind``: ``fp32`` (CUDA cores), ``tf32``, ``bf16``, ``fp16`` or ``fp8``.
    """
    found: float | None = _table().get(_BRANDS.sub("", product.strip()), {}).get(kind)
    return found
