"""up: the services of a Compose file as a group of runs."""
