import utils

print(utils.load('x'))
