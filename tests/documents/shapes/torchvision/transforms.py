"""Pictures to tensors; what turns and shifts pictures leaves them."""


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, picture):
        for step in self.steps:
            picture = step(picture)
        return picture


class ToTensor:
    def __call__(self, picture):
        return picture.float().div(255).unsqueeze(0) if picture.dim() == 2 else picture


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class RandomRotation:
    def __init__(self, *arguments, **settings):
        pass

    def __call__(self, picture):
        return picture


RandomAffine = RandomRotation
