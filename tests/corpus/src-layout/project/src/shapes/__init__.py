from .area import area
