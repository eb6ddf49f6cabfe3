"""A Dockerfile that needs no build context: the generated files that it copies are written by the build itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from seatrial.job.plan import ImagePlan


def inline(image: ImagePlan) -> str | None:
    """The image's Dockerfile without a context, or None where it needs files that are not text, or secrets.

    BuildKit before 0.10 knows no here-documents (moby/buildkit, docs/reference.md), so files are printed.
    """
    if image.dockerfile is None or image.context_files or image.own_wheel or image.secrets or image.slimmed:
        return None
    lines: list[str] = []
    for line in image.dockerfile.splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            if any(name not in image.context_texts for name in words[1:-1]):
                return None
            lines += _written(words[1:-1], words[-1], image)
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _written(names: list[str], folder: str, image: ImagePlan) -> Iterator[str]:
    yield f"RUN mkdir -p {folder} && \\"
    prints = []
    for name in names:
        words = " ".join(shlex.quote(each) for each in image.context_texts[name].splitlines())
        prints.append(f"    printf '%s\\n' {words} > {folder.rstrip('/')}/{name}")
    yield " && \\\n".join(prints)
