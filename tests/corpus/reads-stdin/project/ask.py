name = input('name? ')
print('hello', name)
