"""Kubernetes: plans rendered as manifests, submitted, watched, explained and collected (docs/decisions/0010)."""
