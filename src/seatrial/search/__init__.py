"""search: settings → runs. A study of trials, engines that choose settings, and those who carry trials out.

docs/decisions/0042-search.md has the design.
"""
