import tabulate

print('größe', tabulate.__name__)
