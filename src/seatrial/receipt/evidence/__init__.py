"""Events and output of a run as typed facts. Nothing is judged here."""
