import os

_, columns = os.popen("stty size", "r").read().split()
print("width", int(columns))
