"""seatrial takes a training script into a GPU container and proves what the GPU did.

Nothing is imported here: the command line starts in milliseconds and the agent runs on any Python >= 3.8.
"""

__version__ = "0.1.0"
