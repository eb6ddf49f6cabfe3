import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Linear(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Linear(), DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8))
    print("done", trainer.current_epoch)
