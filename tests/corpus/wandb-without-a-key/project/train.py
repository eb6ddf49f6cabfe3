import torch
import wandb

run = wandb.init(project="corpus")
run.log({"loss": torch.ones(1).item()})
