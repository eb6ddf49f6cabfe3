"""Pages and tables over several runs: compare, and the view of a run that is still going."""
