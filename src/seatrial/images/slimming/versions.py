"""What a stub answers as the library did: its version, which JAX asks every library for before it starts.

JAX: jax_plugins/xla_cuda13/__init__.py, _check_cuda_versions. https://docs.nvidia.com/cuda/cufft/#function-cufftgetversion
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

#: ``f(int *version)``
_VERSION = ("cufftGetVersion", "cusolverGetVersion", "curandGetVersion", "ncclGetVersion", "pncclGetVersion")

#: ``f(libraryPropertyType, int *value)``: 0 is the major version, 1 the minor one, 2 the patch level.
_PROPERTY = ("cufftGetProperty", "cusolverGetProperty", "curandGetProperty", "cusparseGetProperty")


def versions(path: Path, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Function → its answers, of those among ``names`` that need neither a GPU nor a handle.

    Asks the library itself, which is loaded into this process. Raises OSError where it cannot be, or refuses.
    """
    asked = {name for name in names if name in _VERSION or name in _PROPERTY}
    library = ctypes.CDLL(str(path)) if asked else None
    return {name: _answer(library, name) for name in sorted(asked)}


def _answer(library: ctypes.CDLL | None, name: str) -> tuple[int, ...]:
    function, value = getattr(library, name), ctypes.c_int()
    answers = []
    for which in ((),) if name in _VERSION else ((0,), (1,), (2,)):
        if function(*which, ctypes.byref(value)):
            raise OSError(f"{name} failed")
        answers.append(value.value)
    return tuple(answers)
