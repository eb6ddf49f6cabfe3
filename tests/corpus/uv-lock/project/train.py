from importlib.metadata import version

import tabulate

print(tabulate.__name__, version('tabulate'))
