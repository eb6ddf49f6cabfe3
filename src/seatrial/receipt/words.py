"""Quantities in words, as every rendering of a receipt writes them. Sizes and durations are job.units' business."""

from __future__ import annotations

import signal


def energy(joules: float) -> str:
    """``812 J``; from 3.6 kJ on also in watt hours."""
    return energy_short(joules) + (f" ({joules / 3600:.3g} Wh)" if joules >= 3600 else "")


def energy_short(joules: float) -> str:
    return f"{joules:.3g} J" if joules < 1000 else f"{joules / 1000:.4g} kJ"


def percent(value: float) -> str:
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def figure(value: float) -> str:
    """A reported number: an integer as it is, else five significant digits."""
    return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else f"{value:.5g}"


def count(number: int, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_uuid(uuid: str) -> str:
    """``GPU-de421f49``: enough to tell the GPUs of one machine apart."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest[:8]}"


def signal_name(number: float) -> str:
    """``SIGTERM``; a number that is no signal as it is."""
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number:g}"
