print('epochs')
