"""Judging the evidence of a run, and showing it: criteria, exit cause, measurements, receipt."""
