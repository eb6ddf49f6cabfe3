from tabulate import tabulate

from shapes import area

print(tabulate([[area(3, 4)]], headers=["area"], tablefmt="github"))
