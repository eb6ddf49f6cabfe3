"""Check values of unknown JSON for a receipt, and write quantities in words for every rendering.

Any script may append to events.jsonl, so the type of every value in it is checked.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
#: Longest text copied from a run into its receipt; a line of a log can be megabytes.
MAX_TEXT = 2000
#: Largest measurement, so that sums of such numbers stay finite.
MAX_NUMBER = 1e100
#: Terminal escape sequences (CSI and OSC, ECMA-48 sections 5.4 and 8.3.89).
_ESCAPES = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
#: Characters that turn the direction of writing (Unicode Standard Annex 9, section 2).
_TURNS = r"\u202a-\u202e\u2066-\u2069"
#: Includes every other control character: a receipt is printed to terminals, and output must not be able to steer them.
_CONTROL = re.compile(rf"{_ESCAPES}|[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNS}]")
#: The same but for the carriage return, which a line of a log is cut at.
_CONTROL_IN_LINE = re.compile(rf"{_ESCAPES}|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_TURNS}]")


def number(value: Any) -> float | None:
    """Return a number of usable size, or None; JSON's true, false, NaN and 1e999 are not numbers."""
    return float(value) if type(value) in (int, float) and abs(value) <= MAX_NUMBER else None


def whole(value: Any) -> int | None:
    """Return a number as an integer, or None."""
    result = number(value)
    return None if result is None else int(result)


def text(value: Any) -> str | None:
    """Return a string that every renderer can print, or None if nothing is left to print."""
    return (clean(value) or None) if isinstance(value, str) else None


def mapping(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return an array (of a record: a tuple), or an empty one."""
    return list(value) if isinstance(value, (list, tuple)) else []


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return key → its values, both in order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def clean(value: str) -> str:
    """Remove control characters and lone surrogates; return one line of at most MAX_TEXT characters."""
    line = " ".join(_CONTROL.sub("", value[: 4 * MAX_TEXT]).encode("utf-8", "replace").decode().split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def clean_line(value: str) -> str:
    """Remove control characters from a line of a log; its indentation and its tabs stay."""
    return _CONTROL_IN_LINE.sub("", value)


if TYPE_CHECKING:
    from seatrial.job.plan import Gpu
    from seatrial.receipt.sections.what_ran import ReceiptGpu

#: Characters of a quoted sentence: two lines of a terminal.
MAX_QUOTE = 150


def energy(joules: float) -> str:
    """Return ``812 J``; from 3.6 kJ on also in watt hours."""
    return energy_short(joules) + (f" ({joules / 3600:.3g} Wh)" if joules >= 3600 else "")


def energy_short(joules: float) -> str:
    return f"{joules:.3g} J" if joules < 1000 else f"{joules / 1000:.4g} kJ"


def percent(value: float) -> str:
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def figure(value: float) -> str:
    """Return a reported number: from a thousand on in groups of three digits, else five significant digits."""
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{int(value)}" if abs(value) < 1e15 and value == int(value) else f"{value:.5g}"


def rate(value: float) -> str:
    """Return a rate: three digits below a hundred, whole from there on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_words(name: str) -> str:
    """Return ``steps/s`` for ``steps_per_s``, ``loop time (s)`` for ``end_loop_s``; other names as they are."""
    if name.endswith("_per_s"):
        return name.removesuffix("_per_s").replace("_", " ") + "/s"
    return name.removeprefix("end_").removesuffix("_s").replace("_", " ") + " time (s)" if name.endswith("_s") else name


def quote(line: str) -> str:
    """Return the first sentence of a line of output, without its place."""
    rest = re.sub(r"^(stdout|stderr)\.log line \d+: ", "", line)
    sentence = re.split(r"(?<=[.!?]) ", rest.replace("memory. Tried", "memory: tried"), maxsplit=1)[0]
    return sentence if len(sentence) <= MAX_QUOTE else sentence[: MAX_QUOTE - 1] + "…"


def join(*parts: str | None) -> str | None:
    """Join the known parts by commas; None if there are none."""
    return ", ".join(part for part in parts if part) or None


def count(number: int, noun: str) -> str:
    """Return ``1 GPU``, ``2 GPUs``, ``2 processes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def short_uuid(uuid: str) -> str:
    """Return ``GPU-de421f49``, which distinguishes the GPUs of one machine."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest[:8]}"


def gpu_names(gpus: Sequence[Gpu | ReceiptGpu]) -> dict[str, str]:
    """Return UUID → ``GPU 0``, or ``GPU 0 (GPU-de421f49)`` if several have that index, such as slices."""
    indices = Counter(gpu.index for gpu in gpus)
    shorts = Counter(short_uuid(gpu.uuid) for gpu in gpus)

    def name(gpu: Gpu | ReceiptGpu) -> str:
        short = short_uuid(gpu.uuid)
        long = gpu.uuid if shorts[short] > 1 else short
        return f"GPU {gpu.index}" if indices[gpu.index] == 1 else f"GPU {gpu.index} ({long})"

    return {gpu.uuid: name(gpu) for gpu in gpus}


def signal_name(number: float) -> str:
    """Return ``SIGTERM``; an unknown number as it is."""
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number:g}"
