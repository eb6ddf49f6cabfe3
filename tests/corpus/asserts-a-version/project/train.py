import idna

assert idna.__version__ == "3.7"  # newer ones change the result
print(idna.__version__)
