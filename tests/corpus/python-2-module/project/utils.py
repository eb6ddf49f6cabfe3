def load(path):
    try:
        return open(path).read()
    # the old way
    except IOError, error:
        return None
