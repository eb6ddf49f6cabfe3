"""Requests to rows and answers to JSON, in front processes: no torch."""
