"""Locked lists of packages of the trackers' images."""
