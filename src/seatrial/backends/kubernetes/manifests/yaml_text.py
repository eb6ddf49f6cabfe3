"""Manifests as people read them, and kubectl. Apart, since a plan whose manifests nobody sees needs no PyYAML."""

from __future__ import annotations

from typing import Any

import yaml

from seatrial.backends.kubernetes.manifests.names import Manifest


def as_yaml(manifests: list[Manifest], *, whole: bool = True) -> str:
    """One YAML stream; without ``whole``, binary data is only told by its size."""
    return "---\n".join(yaml.dump(_shown(m, whole), Dumper=_Dumper, sort_keys=False, width=120) for m in manifests)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml's, ten times as fast
    """Texts of several lines as they are, not as one quoted line; no aliases, which people do not read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _shown(manifest: Manifest, whole: bool) -> Manifest:
    if whole or "binaryData" not in manifest:
        return manifest
    return {
        **manifest,
        "binaryData": {key: f"({len(text):,} characters)" for key, text in manifest["binaryData"].items()},
    }
