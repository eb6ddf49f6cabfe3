"""Run the services of a Compose file as a group of runs, for ``seatrial up``."""
