"""Renderings of a receipt; they know only blocks of rows."""
