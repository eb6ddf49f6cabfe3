from .model import WIDTH

print(WIDTH)
