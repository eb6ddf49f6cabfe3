from torch.utils.tensorboard import SummaryWriter

with SummaryWriter("logs") as writer:
    writer.add_scalar("loss", 0.5, 1)
print("logged")
