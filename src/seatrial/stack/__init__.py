"""Find versions that fit together, and on this machine: facts with sources, rules, and the resolver."""
