import humanize
import tabulate

print(humanize.naturalsize(1000), tabulate.__name__)
