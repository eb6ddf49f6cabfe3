def set_seed(seed):
    import torch

    torch.manual_seed(seed)
