"""Search: settings → runs, a study of trials and the engines that choose and run them (docs/decisions.md, 0042)."""
