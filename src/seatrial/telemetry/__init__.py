"""Views of probe's samples: the terminal's, Prometheus', and log files."""
