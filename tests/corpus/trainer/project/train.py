import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16))
tokens = torch.arange(16)
data = [{"input_ids": tokens, "labels": tokens}] * 8
arguments = TrainingArguments("out", max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True)
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
print("steps", trainer.state.global_step)
