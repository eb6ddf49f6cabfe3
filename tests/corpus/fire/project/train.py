import fire


def train(lr: float = 0.1):
    print("lr", lr)


fire.Fire(train)
