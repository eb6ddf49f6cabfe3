"""Live readings of this machine and its runs: the screen of ``top``, the dashboard, metrics, and runs side by side."""
