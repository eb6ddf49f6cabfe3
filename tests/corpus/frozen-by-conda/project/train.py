import idna
import tabulate

print(idna, tabulate)
