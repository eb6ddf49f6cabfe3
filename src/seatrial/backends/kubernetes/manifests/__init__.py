"""ClusterPlan → manifests, as plain dictionaries. Pure: nothing here asks a cluster."""
