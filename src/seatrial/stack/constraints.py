"""Constraints: what a project asks of its stack, read from its requirements, its imports and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from seatrial.stack.facts import Framework


@dataclass(frozen=True)
class Constraints:
    """The project's side of the bargain.

    Attributes:
        framework: None: nothing to resolve but Python.
        specifier: on the framework's version, e.g. ``>=2.6,<2.10``; "" when open.
        variant: the build that is named: ``cu126``, ``cpu``, or None.
        gpu: it is to run on GPUs.
        python: Python of a base image that the user chose, or None when seatrial chooses it.
        python_specifier: ``requires-python`` of the project.
        barred: Python → what else is required and has no wheel for it, a sentence without an end.
        cudnn: exact version of nvidia-cudnn-cu* that the requirements pin, or None.
        torchvision: specifier on torchvision, whose releases each need one torch; None when it is not required.
        torchaudio: likewise. keras: specifier on Keras, of which TensorFlow 2.6 and later each need one release.
        prefer: version that the choice falls on when it fits, e.g. the one seatrial is tested with.
        said: how the requirement is written, for sentences: ``torch==2.0.1 (requirements.txt)``.
    """

    framework: Framework | None
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    variant: str | None = None
    gpu: bool = True
    python: str | None = None
    python_specifier: SpecifierSet = field(default_factory=SpecifierSet)
    barred: Mapping[str, str] = field(default_factory=dict)
    cudnn: str | None = None
    torchvision: SpecifierSet | None = None
    torchaudio: SpecifierSet | None = None
    keras: SpecifierSet | None = None
    prefer: str | None = None
    said: str = "the project"
