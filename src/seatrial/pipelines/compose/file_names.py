"""The names under which Compose looks for its files. Source: compose-go, cli/options.go."""

from __future__ import annotations

#: In its order; the first that is there counts.
COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")

#: Beside one of those; the first that is there counts.
OVERRIDES = tuple(f"{stem}.override.{ending}" for stem in ("compose", "docker-compose") for ending in ("yml", "yaml"))
