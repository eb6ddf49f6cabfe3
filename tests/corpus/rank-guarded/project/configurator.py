import sys

for arg in sys.argv[1:]:
    key, value = arg.lstrip("-").split("=")
    globals()[key] = value
