"""search: settings → runs. A study of trials, engines that choose settings, and those who carry trials out.

docs/decisions.md, 0042 has the design.
"""
