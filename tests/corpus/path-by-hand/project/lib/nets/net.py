NAME = 'net 7'
