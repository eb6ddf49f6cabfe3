"""Pages and tables over several runs: compare, sweeps, and the view of a run that is still going."""
