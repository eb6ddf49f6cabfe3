"""Build an image: run the engine, check the result, explain a failure."""
