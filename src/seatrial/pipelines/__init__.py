"""Pipelines: groups of runs and services from a Compose file, from stages of seatrial.toml, or trackers."""
