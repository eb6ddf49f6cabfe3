"""Requirements → the layers that they go into: the framework, what it requires, what is large, and all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from seatrial.images.dockerfile import layer_program
from seatrial.images.requirements.pip_format import Requirements, canonical_name, parsed
from seatrial.images.resolve.framework import FRAMEWORKS, PACKAGES
from seatrial.stack.facts import Framework

#: The program of images/dockerfile/layer_program.py as a file of the build context, and its folder there.
TOOLS, PROGRAM = "tools", "layer.py"

#: Folders of the build context, each with the requirements of a layer.
FRAMEWORK, REQUIRED, LARGE, PACKAGES_FOLDER = "framework", "required", "large", "packages"
REQUIREMENTS, CONSTRAINTS = "requirements.txt", "constraints.txt"

#: Requirements of a framework without its binary parts; numpy is no requirement of torch, but comes with it in any case
#: (resolve_frameworks). A project that asks for one of these at a version gets it there in the layer above the
#: framework; a name that is missing here costs a second copy of it, nothing else.
_REQUIRED: dict[Framework, str] = {
    "torch": "filelock fsspec jinja2 markupsafe mpmath networkx numpy setuptools sympy typing-extensions",
    "tensorflow": (
        "absl-py astunparse flatbuffers gast google-pasta grpcio h5py keras libclang markdown markupsafe ml-dtypes "
        "namex numpy opt-einsum optree protobuf requests rich setuptools six tensorboard termcolor "
        "typing-extensions wrapt"
    ),
    "jax": "ml-dtypes numpy opt-einsum scipy",
}

#: Common packages that take more than 10 MB unpacked, or a second of CPU to compile, themselves or with what they
#: require. By judgement, not by measurement: a name too few or too many costs time in a build, nothing else.
_LARGE = """
accelerate albumentations bitsandbytes botorch catboost datasets deepspeed diffusers fastai gensim gradio gymnasium
jupyter jupyterlab lightgbm lightning librosa llvmlite matplotlib mlflow moviepy notebook numba onnx onnxruntime
onnxruntime-gpu open3d opencv-contrib-python opencv-contrib-python-headless opencv-python opencv-python-headless optuna
pandas peft pillow plotly polars pyarrow pyqt5 pytorch-lightning ray scikit-image scikit-learn scipy seaborn
sentence-transformers spacy statsmodels streamlit tensorboard timm tokenizers torchaudio torchdata torchmetrics
torchtext torchvision transformers ultralytics vllm wandb xformers xgboost
"""


@dataclass(frozen=True)
class Layers:
    """Hold the requirements of each layer.

    Attributes:
        framework: of the first one: the framework alone, which names what it needs of CUDA; None without a framework.
        required: what the framework requires besides, at the versions that the project asks for, where it does.
        large: the project's packages that are large or slow to install; None if they are not separated.
        packages: everything: pip sees that the layers below have most of it. None where they have it all.
        hashed: each requirement has its hash, so pip takes nothing that is not listed.
    """

    framework: Requirements | None
    required: Requirements | None
    large: Requirements | None
    packages: Requirements | None
    hashed: bool = False

    def texts(self) -> dict[str, str]:
        """Path in the build context → text."""
        found = {}
        entry = (self.framework, self.required, self.large, self.packages)
        for folder, wanted in zip((FRAMEWORK, REQUIRED, LARGE, PACKAGES_FOLDER), entry, strict=True):
            if wanted is not None and wanted.lines:
                found[f"{folder}/{REQUIREMENTS}"] = "\n".join([*wanted.options, *wanted.lines, ""])
                if wanted.constraints:
                    found[f"{folder}/{CONSTRAINTS}"] = "\n".join([*wanted.constraints, ""])
        return found


def split(found: Requirements, *, apart: bool = True) -> Layers:
    """The layers of these requirements.

    Args:
        apart: there may be a layer of large packages. Not where they are compiled: then all are made in one place.
    """
    hashed = "--require-hashes" in found.options or any("--hash" in line for line in found.lines)
    place = _framework_place(found)
    if hashed:
        binary = _chosen(found.lines, _is_binary) if place is not None else ()
        framework = Requirements(lines=binary, options=found.options) if binary else None
        return Layers(framework, None, None, found, hashed=True)
    large = _large(found) if apart else None
    if place is None:
        return Layers(None, None, large, found)
    line = found.lines[place]
    name: Framework = PACKAGES[canonical_name(line) or ""]
    with_ranges = name != "torch"  # torch names each of its parts exactly, itself
    parts = _chosen(found.lines, _is_binary_part) if with_ranges else ()
    constraints = _chosen(found.constraints, _is_binary_part) if with_ranges else ()
    framework = Requirements(tuple(sorted({line, *parts})), constraints, found.options)
    required = _required(found, framework, name)
    nothing_more = large is None and set(found.lines) <= set(required.lines)
    if nothing_more and set(found.constraints) <= set(required.constraints):
        return Layers(framework, required, None, None)
    return Layers(framework, required, large, found)


def program() -> bytes:
    """The file TOOLS/PROGRAM of the build context."""
    return Path(layer_program.__file__).read_bytes()


def digest_of(texts: dict[str, str], folder: str, slimmer: bytes = b"") -> str:
    """12 hex digits of a folder's files and our programs: Buildah does not look into what a step mounts."""
    files = {name: text for name, text in texts.items() if name.startswith(f"{folder}/")}
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
    digest.update(hashlib.sha256(program()).digest() + hashlib.sha256(slimmer).digest())
    return digest.hexdigest()[:12]


def _required(found: Requirements, framework: Requirements, name: Framework) -> Requirements:
    names = _REQUIRED[name].split()
    lines = _chosen(found.lines, lambda name, entry: name in names and (name == "numpy" or bool(entry.specifier)))
    constraints = _chosen(found.constraints, lambda name, entry: name in names)
    return Requirements((*framework.lines, *lines), (*framework.constraints, *constraints), found.options)


def _large(found: Requirements) -> Requirements | None:
    lines = _chosen(found.lines, _is_large)
    return Requirements(lines, _chosen(found.constraints, _is_large), found.options) if lines else None


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
    return tuple(sorted(line for name, entry, line in named if entry and not entry.url and wanted(name, entry)))


def _is_binary(name: str, entry: Requirement) -> bool:
    return layer_program.FRAMEWORK.match(name) is not None


def _is_binary_part(name: str, entry: Requirement) -> bool:
    """Not a framework itself: a second one belongs to the packages."""
    return name not in PACKAGES and _is_binary(name, entry)


def _is_large(name: str, entry: Requirement) -> bool:
    return name in _LARGE.split()
