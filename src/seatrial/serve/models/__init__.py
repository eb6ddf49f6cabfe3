"""What can be served. The readers import no torch: front processes unpickle them."""
