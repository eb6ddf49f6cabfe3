"""--engine ray: the trials of a search on the nodes of a Ray cluster. docs/decisions/0043-search-on-ray.md."""
