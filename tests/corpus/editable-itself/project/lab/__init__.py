import tabulate

VERSION = 1
