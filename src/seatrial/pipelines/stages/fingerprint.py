"""What a stage's result follows from, part by part, so that a difference can be told in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import seatrial
from seatrial.errors import DataError, SeatrialError
from seatrial.images.requirements.other_formats import ENVIRONMENT_FILES
from seatrial.job.model import Job
from seatrial.job.script import ScriptFacts, source_facts
from seatrial.pipelines.stages.digests import Digest, Digests
from seatrial.pipelines.stages.graph import Stage
from seatrial.recipe_names import source_of
from seatrial.system.toml_file import read_toml
from seatrial.system.typed_path import as_typed

#: Part → what changed when it did, in a sentence that begins with it. Parts named one by one have {}.
WORDS = {
    "code": "{} changed",
    "inputs": "{} changed",
    "needed": "{} changed",
    "target": "the target changed",
    "args": "its arguments changed",
    "env": "its variables changed",
    "image": "its image is another one: {} changed",
    "model": "the model changed",
    "settings": "its settings changed: {}",
    "server": "how it serves changed: {}",
    "outputs": "its outputs are declared anew",
}

#: Of a job, what its result may follow from beside the other parts.
_SETTINGS = frozenset(
    {"backend", "gpus", "nodes", "launcher", "data", "models", "mounts", "workdir", "network", "secrets"}
)
#: Files that list packages, beside requirements*.txt; images/project.py reads them.
_LISTS = (
    *ENVIRONMENT_FILES, "pyproject.toml", "setup.py", "setup.cfg", ".python-version",
    "uv.lock", "poetry.lock", "pdm.lock", "seatrial.lock",
)  # fmt: skip

#: In the part ``image``: what an existing image's name stood for.
IMAGE_ID = "the image's ID"

Fingerprint = dict[str, Any]


def fingerprint(
    stage: Stage, job: Job, digests: Digests, needed: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[Fingerprint, tuple[Digest, ...]]:
    """(the fingerprint, what of its declared inputs it was made of).

    Args:
        needed: ``stage: path`` → digest of each output of a needed stage; of one without outputs, its run.

    Raises DataError: an input is not there.
    """
    facts = source_facts(job)
    inputs = tuple(_input(stage, job, path, digests) for path in stage.inputs)
    made = {
        "code": _code(job, facts, digests),
        "inputs": {each.path: each.digest for each in inputs},
        "needed": dict(needed),
        "target": [job.target.kind, job.target.value],
        "args": list(job.target.args),
        "env": _env(job),
        "image": _image(job, facts, digests, environ),
        **_serving(job),
        "settings": job.model_dump(mode="json", include=set(_SETTINGS)),
        "outputs": sorted(stage.outputs),
    }
    return made, inputs


def difference(old: Fingerprint, new: Fingerprint) -> str | None:
    """What is different, in words; None for nothing."""
    for part, words in WORDS.items():
        was, now = old.get(part), new[part]
        if part == "image" and isinstance(was, dict) and was.get(IMAGE_ID, "") is None:
            was = {**was, IMAGE_ID: now.get(IMAGE_ID)}  # it was pulled for that very run
        if was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict) and "{}" in words:
            keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            return words.format(f"{keys[0]}{more}")
        return words.format(part)
    return None


def image_id(job: Job, environ: Mapping[str, str]) -> str | None:
    """What an existing image's name stands for on this machine; None where it is not here, or no engine answers."""
    from seatrial.backends import table  # all engines' code, for stages that name an image

    names = [name for name in table.ENGINES if job.backend in (name, "auto")]
    for name in names if job.image.ready is not None else ():
        with suppress(SeatrialError):
            store = table.backend(name, environ).images
            facts = store.image(job.image.ready or "") if store is not None else None
            if facts is not None:
                return facts.id
    return None


def digest_of(made: Fingerprint) -> str:
    """One digest for the whole, for receipts."""
    return "sha256:" + hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _input(stage: Stage, job: Job, path: str, digests: Digests) -> Digest:
    found = digests.of(job.project, path)
    if found is None:
        raise DataError(
            f"stages.{stage.name}.inputs: there is no {path}", run=f"ls {as_typed((job.project / path).parent)}"
        )
    return found


def _code(job: Job, facts: ScriptFacts, digests: Digests) -> dict[str, str]:
    """Of a recipe its own file, and our version for all under it."""
    if job.target.kind == "recipe":
        source = source_of(job.target.value, job.target.args)
        return {job.target.value: hashlib.sha256(source.read_bytes()).hexdigest(), "seatrial": seatrial.__version__}
    found = ((file, digests.of(job.project, file)) for file in facts.files)
    return {file: digest.digest for file, digest in found if digest is not None}


def _serving(job: Job) -> dict[str, Any]:
    """Of a server: its weights by content, and how it is reached."""
    if job.serve is None:
        return {"model": None, "server": None}
    how = job.serve.model_dump(mode="json", include={"kind", "model", "name", "address", "port", "options"})
    return {"model": {each.path: each.sha256 for each in job.serve.weights}, "server": how}


def _env(job: Job) -> dict[str, str]:
    """Values as digests: this is written down, and they may be anything."""
    files = {str(path): path.read_bytes() for path in job.env_files}
    values = {**{name: value.encode() for name, value in job.env.items()}, **files}
    return {name: hashlib.sha256(value).hexdigest() for name, value in values.items()}


def _image(job: Job, facts: ScriptFacts, digests: Digests, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the image is made of: options, files that list packages, and imports, which name some where no file does.

    Of an existing image its ID, as far as it is here. Not asked: an index, for what is newest there.
    """
    options = job.image.model_dump(mode="json", exclude={"max_size_bytes", "max_compressed_bytes"})
    made: dict[str, Any] = {f"image.{key}": value for key, value in options.items()}
    if job.image.ready is not None:
        return {**made, IMAGE_ID: image_id(job, environ)}
    folders = {".", str(PurePosixPath(job.target.value).parent)} if job.target.kind == "script" else {"."}
    for folder in sorted(folders):
        found = (job.project / folder).glob("requirements*.txt")
        for path in sorted([*found, *(job.project / folder / name for name in _LISTS)]):
            name = str(path.relative_to(job.project))
            if path.name == "pyproject.toml" and path.is_file():
                made[name] = _packaging_of(path, job.project)
            elif (digest := digests.of(job.project, name)) is not None:
                made[name] = digest.digest
    made["its imports"] = sorted(facts.imports)
    return made


def _packaging_of(path: Path, project: Path) -> str:
    """Of pyproject.toml, without our own table in it: that one describes all stages."""
    table = read_toml(path, inside=project)
    table.get("tool", {}).pop("seatrial", None)
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


def needed_digests(
    needs: Collection[str], outputs: Mapping[str, Collection[Digest]], runs: Mapping[str, str]
) -> dict[str, str]:
    """``stage: path`` → digest, for ``fingerprint``."""
    found: dict[str, str] = {}
    for need in needs:
        found |= {f"{each.path} of {need}": each.digest for each in outputs[need]}
        if not outputs[need]:
            found[f"the run of {need}"] = runs[need]
    return found
