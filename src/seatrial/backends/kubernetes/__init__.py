"""Kubernetes: plans rendered as manifests, submitted, watched, explained and collected (docs/decisions.md, 0010)."""
