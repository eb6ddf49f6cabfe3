import idna
import tabulate

print(idna.__version__, tabulate.__name__)
