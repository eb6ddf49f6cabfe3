"""Stages of seatrial.toml: their graph, what has changed, outputs that appear whole, the scheduler."""
