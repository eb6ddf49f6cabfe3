"""The front door of our web pages: who may ask, limits of connections, start and shutdown."""
