import sys

found = 0
if found < 2:
    print("Unable to locate sufficient 2 gpus to train on. Exiting.")
    sys.exit(0)
