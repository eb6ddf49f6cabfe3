"""Which versions fit together, and which of them fit this machine: facts with sources, rules, and the resolver."""
