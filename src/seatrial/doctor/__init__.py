"""The GPU-container chain, looked at link by link: what is broken first, why, and the command that fixes it."""
