"""Requirements → the layers that they go into: the framework, what is large or slow to install, and all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from seatrial.images.layers import in_image
from seatrial.images.requirements.requirements_files import Requirements, canonical_name, parsed
from seatrial.images.requirements.resolve_frameworks import FRAMEWORKS, PACKAGES

#: The program of images/layers/in_image.py as a file of the build context, and its folder there.
TOOLS, PROGRAM = "tools", "layer.py"

#: Folders of the build context, each with the requirements of a layer.
FRAMEWORK, LARGE, PACKAGES_FOLDER = "framework", "large", "packages"
REQUIREMENTS, CONSTRAINTS = "requirements.txt", "constraints.txt"

#: What the frameworks themselves require, next to their binary parts (metadata of torch 2.13.0, tensorflow 2.20 and jax
#: 0.7). A project that names one of these at a version gets that version in the second layer.
_REQUIRED_BY_FRAMEWORKS = """
absl-py astunparse filelock flatbuffers fsspec gast google-pasta grpcio h5py jinja2 keras libclang markdown markupsafe
ml-dtypes mpmath namex networkx opt-einsum optree protobuf requests rich setuptools six sympy tensorboard termcolor
typing-extensions wrapt
"""

#: Common packages that take more than 10 MB unpacked, or a second of CPU to compile, themselves or with what they
#: require. By judgement, not by measurement: a name too few or too many costs time in a build, nothing else.
_LARGE = """
accelerate albumentations bitsandbytes botorch catboost datasets deepspeed diffusers fastai gensim gradio gymnasium h5py
jupyter jupyterlab lightgbm lightning librosa llvmlite matplotlib mlflow moviepy notebook numba numpy onnx onnxruntime
onnxruntime-gpu open3d opencv-contrib-python opencv-contrib-python-headless opencv-python opencv-python-headless optuna
pandas peft pillow plotly polars pyarrow pyqt5 pytorch-lightning ray scikit-image scikit-learn scipy seaborn
sentence-transformers spacy statsmodels streamlit tensorboard timm tokenizers torchaudio torchdata torchmetrics
torchtext torchvision transformers ultralytics vllm wandb xformers xgboost
"""


@dataclass(frozen=True)
class Layers:
    """What each layer is asked for.

    Attributes:
        framework: of the first one: the framework alone, which names what it needs of CUDA; None without a framework.
        large: what the framework requires besides, and the project's large packages; None where that is not told apart.
        packages: everything: pip sees that the layers below have most of it.
        hashed: each requirement says what it must be, byte by byte, so that pip takes nothing that is not listed.
    """

    framework: Requirements | None
    large: Requirements | None
    packages: Requirements
    hashed: bool = False

    def texts(self) -> dict[str, str]:
        """Path in the build context → text."""
        found = {f"{TOOLS}/{PROGRAM}": program()}
        for folder, wanted in ((FRAMEWORK, self.framework), (LARGE, self.large), (PACKAGES_FOLDER, self.packages)):
            if wanted is not None and wanted.lines:
                found[f"{folder}/{REQUIREMENTS}"] = "\n".join([*wanted.options, *wanted.lines, ""])
                if wanted.constraints:
                    found[f"{folder}/{CONSTRAINTS}"] = "\n".join([*wanted.constraints, ""])
        return found


def split(found: Requirements, *, apart: bool = True) -> Layers:
    """The layers of these requirements.

    Args:
        apart: the second layer may be made; where packages are compiled, that is done for all of them in one place.
    """
    hashed = "--require-hashes" in found.options or any("--hash" in line for line in found.lines)
    place = _framework_place(found)
    if hashed:
        binary = _chosen(found.lines, _is_binary) if place is not None else ()
        framework = Requirements(lines=binary, options=found.options) if binary else None
        return Layers(framework, None, found, hashed=True)
    framework = None
    if place is not None:
        line = found.lines[place]
        with_ranges = not (canonical_name(line) or "").startswith("torch")  # torch names each of them exactly itself
        lines = {line, *(_chosen(found.lines, _is_binary_part) if with_ranges else ())}
        constraints = _chosen(found.constraints, _is_binary_part) if with_ranges else ()
        framework = Requirements(tuple(sorted(lines)), constraints, found.options)
    large = _large(found, framework) if apart else None
    return Layers(framework, large, found)


def program() -> str:
    return Path(in_image.__file__).read_text(encoding="utf-8")


def digest_of(texts: dict[str, str], folder: str, *more: bytes) -> str:
    """12 hex digits of a folder's files and the program: Buildah does not look into what a step mounts."""
    files = {name: text for name, text in texts.items() if name.startswith((f"{folder}/", f"{TOOLS}/"))}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
    for data in more:
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()[:12]


def _large(found: Requirements, framework: Requirements | None) -> Requirements | None:
    lines = set(_chosen(found.lines, _is_large))
    if framework is not None:
        lines |= set(framework.lines)
    if not lines:
        return None
    return Requirements(tuple(sorted(lines)), _chosen(found.constraints, _is_constraint_of_large), found.options)


def _framework_place(found: Requirements) -> int | None:
    """Where the line of the first framework is: torch before TensorFlow before JAX, as they are resolved."""
    for framework in FRAMEWORKS:
        for place, line in enumerate(found.lines):
            requirement = parsed(line)
            if PACKAGES.get(canonical_name(line) or "") == framework and requirement and not requirement.url:
                return place
    return None


def _chosen(lines: Iterable[str], wanted: Callable[[str, Requirement], bool]) -> tuple[str, ...]:
    """Those that pip finds on an index, sorted: the order in which a project names them makes no other layer."""
    named = ((canonical_name(line) or "", parsed(line), line) for line in lines)
    return tuple(sorted(line for name, asked, line in named if asked and not asked.url and wanted(name, asked)))


def _is_binary(name: str, asked: Requirement) -> bool:
    return in_image.FRAMEWORK.match(name) is not None


def _is_binary_part(name: str, asked: Requirement) -> bool:
    """Not a framework itself: a second one belongs to the packages."""
    return name not in PACKAGES and _is_binary(name, asked)


def _is_large(name: str, asked: Requirement) -> bool:
    return name in _LARGE.split() or (name in _REQUIRED_BY_FRAMEWORKS.split() and bool(asked.specifier))


def _is_constraint_of_large(name: str, asked: Requirement) -> bool:
    return name in (_LARGE + _REQUIRED_BY_FRAMEWORKS).split()
