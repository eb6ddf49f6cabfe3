"""One file for each layer of the chain: its checks, and the findings that they end in."""
