"""What the pods of a run on a cluster are."""
