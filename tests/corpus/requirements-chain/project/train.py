import idna
import tabulate

print('idna', idna.__version__, tabulate.__name__)
