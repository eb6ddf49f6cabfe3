"""Rules of ``seatrial build --check``: a Dockerfile → remarks. A file for each family, with the tuple of its rules."""
