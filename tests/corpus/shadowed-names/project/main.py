import models.net
from datasets import load
from utils import say

assert models.net.WIDTH
say(len(load()))
