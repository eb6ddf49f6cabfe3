"""Texts in one row of tokens without padding: their batches, a BERT over them with its gradients, and its optimizer."""
