from tinygpt.model import GPT
from tinygpt.utils import set_seed

set_seed(1)
print("parameters", sum(each.numel() for each in GPT().parameters()))
