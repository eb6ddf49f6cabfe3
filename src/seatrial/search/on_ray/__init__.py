"""--engine ray: the trials of a search on the nodes of a Ray cluster. docs/decisions.md, 0043."""
