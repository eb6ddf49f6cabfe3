"""Several settings of one recipe trained as one model: parameters, batches and optimizer with a leading trial."""
