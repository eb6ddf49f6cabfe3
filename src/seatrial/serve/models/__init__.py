"""What can be served: a recipe's model, a model file, a class of the user's.

A front opens readers from this package: nothing here imports torch before a model is opened.
"""

from seatrial.serve.models.open import open_model

__all__ = ["open_model"]
