import tabulate

if True:
    print(tabulate.__name__)
