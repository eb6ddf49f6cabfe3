def say(n):
    print(n, 'samples')
