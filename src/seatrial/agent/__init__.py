"""The supervisor inside the container: checks the GPUs, runs the target, keeps evidence. Python >= 3.8, no extras."""
