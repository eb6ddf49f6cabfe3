"""Job → ImagePlan: which base, which packages, which Dockerfile. Pure but for reading the project's own files."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from seatrial.errors import ConfigError
from seatrial.images.dockerfile import (
    CA_SECRET,
    CONSTRAINTS,
    REQUIREMENTS,
    VENV_PYTHON,
    WHEELS,
    ImageContents,
    render,
)
from seatrial.images.project import project_requirements, settle_torch
from seatrial.images.recipes import recipe_requirements
from seatrial.images.requirements import Requirements, checked_requirement
from seatrial.images.wheel import WHEEL_NAME, wheel_bytes
from seatrial.job.model import ImageOptions, Job
from seatrial.job.plan import Choice, ImagePlan


def plan_image(
    job: Job, *, imports: frozenset[str], compiles: bool, cpu_only: bool
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """The image this job runs in, and why it is like that.

    Args:
        imports: top-level names that the target imports; without meaning for a recipe or a ready image.
        compiles: the target compiles when it runs (torch.compile, Triton, C++ extensions).
        cpu_only: the run has no GPU.

    Returns:
        (plan, choices). A ready image's entrypoint, cmd, env and python are for the caller to fill in from its
        ImageFacts.

    Raises:
        ConfigError: a requirement, file or folder that the build could not use, by ``file:line`` or key.
        TargetError: no such recipe.
    """
    if job.image.ready:
        choice = Choice(what="image", value=job.image.ready, reason="a ready image was asked for; nothing is built")
        return ImagePlan(tag=job.image.ready, build=False, python=None), (choice,)
    base = Choice(what="base image", value=job.image.base, reason=_reason_of_base(job.image))
    found, cpu_index, packages = plan_packages(job, imports=imports, cpu_only=cpu_only)
    wheels = _wheels(job)
    with_ours = job.target.kind == "recipe" or "seatrial" in imports
    contents = ImageContents(
        slug=_slug(job),
        base=job.image.base,
        system_packages=job.image.system_packages,
        compiles=compiles,
        requirements=bool(found.lines),
        constraints=bool(found.constraints),
        git=found.needs_git,
        cpu_index=cpu_index,
        ca_bundle=job.image.ca_bundle is not None,
        pip_conf=pip_conf(job.image) is not None,
        wheels=bool(wheels),
        sources=_digest_of_sources(job.image, wheels),
        own_wheel=WHEEL_NAME if with_ours else None,
    )
    dockerfile = render(contents)
    texts = _texts(found)
    everything = json.dumps([dockerfile, texts], sort_keys=True).encode() + (wheel_bytes() if with_ours else b"")
    digest = hashlib.sha256(everything).hexdigest()[:12]
    plan = ImagePlan(
        tag=f"seatrial/{contents.slug}:{digest}",
        build=True,
        base=job.image.base,
        python=VENV_PYTHON,
        dockerfile=dockerfile,
        context_files={f"{WHEELS}/{path.name}": str(path) for path in wheels},
        context_texts=texts,
        own_wheel=contents.own_wheel,
        secrets={CA_SECRET: str(_ca_bundle(job))} if job.image.ca_bundle else {},
        network=job.image.build_network,
    )
    return plan, (base, *packages, *_compiler(compiles))


def plan_packages(
    job: Job, *, imports: frozenset[str], cpu_only: bool
) -> tuple[Requirements, str | None, tuple[Choice, ...]]:
    """What pip is asked for, whether for an image or for a venv: (requirements, index of CPU builds or None, why)."""
    found, packages = _requirements(job, imports)
    found, cpu_index, torch = settle_torch(
        found, imports, cpu_only=cpu_only, own_sources=bool(job.image.index_url or job.image.find_links)
    )
    return found, cpu_index, (packages, *torch)


def pip_conf(options: ImageOptions) -> str | None:
    """The pip configuration that goes into the build as a secret, or None when no source is named."""
    lines = []
    if options.index_url:
        lines.append(f"index-url = {options.index_url}")
    if options.find_links and _is_url(options.find_links):
        lines.append(f"find-links = {options.find_links}")
    return "\n".join(["[global]", *lines, ""]) if lines else None


def _requirements(job: Job, imports: frozenset[str]) -> tuple[Requirements, Choice]:
    if job.target.kind == "recipe":
        found = Requirements(lines=recipe_requirements(job.target.value))
        choice = Choice(
            what="packages", value=", ".join(found.lines), reason=f"the recipe {job.target.value} uses them"
        )
    else:
        script_dir = (job.project / job.target.value).parent if job.target.kind == "script" else job.project
        found, choice = project_requirements(job.project, imports, script_dir)
    further = tuple(checked_requirement(line, "seatrial.toml: image.requirements") for line in job.image.requirements)
    if further:
        choice = choice.model_copy(
            update={
                "value": ", ".join((*found.lines, *further)),
                "reason": f"{choice.reason}; image.requirements adds {', '.join(further)}",
            }
        )
    return found + Requirements(lines=further), choice


def _reason_of_base(options: ImageOptions) -> str:
    if options.base == ImageOptions.model_fields["base"].default:
        return "small, and the wheels bring their own CUDA"
    return "image.base names it"


def _compiler(compiles: bool) -> tuple[Choice, ...]:
    if not compiles:
        return ()
    return (Choice(what="compiler", value="g++ and Python headers", reason="the target compiles when it runs"),)


def _texts(found: Requirements) -> dict[str, str]:
    texts = {}
    if found.lines:
        texts[REQUIREMENTS] = "\n".join([*found.options, *found.lines, ""])
    if found.constraints:
        texts[CONSTRAINTS] = "\n".join([*found.constraints, ""])
    return texts


def _wheels(job: Job) -> tuple[Path, ...]:
    """Wheels of a ``find_links`` folder, by name; () when it is a URL or not given. Relative to the project."""
    if not job.image.find_links or _is_url(job.image.find_links):
        return ()
    folder = job.project / job.image.find_links
    wheels = tuple(sorted(folder.glob("*.whl"))) if folder.is_dir() else ()
    if not wheels:
        raise ConfigError(
            f"seatrial.toml: image.find_links: no wheels in {folder}", run=f"pip download -d {folder} PACKAGE"
        )
    return wheels


def _ca_bundle(job: Job) -> Path:
    """The certificate bundle's absolute path; it is named relative to the project."""
    path = job.project / (job.image.ca_bundle or "")
    if not path.is_file() or b"-----BEGIN CERTIFICATE-----" not in path.read_bytes():
        raise ConfigError(
            f"seatrial.toml: image.ca_bundle: {path} is no PEM file of certificates",
            run=f"openssl x509 -in {path} -noout -subject",
        )
    return path


def _digest_of_sources(options: ImageOptions, wheels: tuple[Path, ...]) -> str | None:
    """12 hex digits over where packages come from, logins left out; wheels count by name and size."""
    sources = [without_login(url) for url in (options.index_url, options.find_links) if url and _is_url(url)]
    sources += [f"{path.name} {path.stat().st_size}" for path in wheels]
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12] if sources else None


def _is_url(place: str) -> bool:
    return "://" in place


def without_login(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _slug(job: Job) -> str:
    """The name part of the tag. A recipe's image is the same from every project."""
    name = job.target.value if job.target.kind == "recipe" else job.project.name
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project"
