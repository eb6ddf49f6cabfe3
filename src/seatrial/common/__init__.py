"""Hold what all three programs share: standard library only, Python 3.8."""
