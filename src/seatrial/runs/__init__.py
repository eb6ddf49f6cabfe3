"""The lifecycle: plan, launch, watch, finalise. Every run is a folder; any process can pick it up again."""
