"""What runs inside a tracker's container; mounted read-only, standard library and that image's packages only."""
