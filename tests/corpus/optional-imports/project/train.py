try:
    import xformers.ops as xops
except ImportError:
    xops = None

use_wandb = False
if use_wandb:
    import wandb

    wandb.init()
print("plain attention" if xops is None else "xformers")
