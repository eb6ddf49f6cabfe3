"""Train on scikit-learn's digits and log each epoch to TensorBoard and to MLflow."""

import os

import mlflow
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.tensorboard import SummaryWriter

EPOCHS = int(os.environ.get("EPOCHS", "10"))
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.001"))

device = "cuda" if torch.cuda.is_available() else "cpu"
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
pixels = torch.from_numpy((images[order] / 16).astype(np.float32)).to(device)
answers = torch.from_numpy(labels[order].astype(np.int64)).to(device)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
mlflow.set_experiment("digits")  # at $MLFLOW_TRACKING_URI
with mlflow.start_run(), SummaryWriter(os.environ.get("LOGS", "/logs")) as writer:
    mlflow.log_params({"learning_rate": LEARNING_RATE, "epochs": EPOCHS, "device": device})
    for epoch in range(1, EPOCHS + 1):
        for chosen in torch.randperm(1500, device=device).split(32):
            loss = nn.functional.cross_entropy(model(pixels[chosen]), answers[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(pixels[1500:]).argmax(1) == answers[1500:]).float().mean().item()
        for name, value in (("loss", loss.item()), ("test_accuracy", accuracy)):
            writer.add_scalar(name, value, epoch)
            mlflow.log_metric(name, value, step=epoch)
        print(f"epoch {epoch}: loss {loss.item():.4f}, test accuracy {accuracy:.2%}", flush=True)
