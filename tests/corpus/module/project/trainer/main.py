from .options import read

print('epochs', read().epochs)
