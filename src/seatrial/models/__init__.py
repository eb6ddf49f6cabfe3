"""Open saved models: of recipes, from weights with their network, and programs."""
