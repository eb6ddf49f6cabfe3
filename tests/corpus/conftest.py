"""The projects are data: pytest looks for no tests in them."""

collect_ignore_glob = ["*/project/*"]
