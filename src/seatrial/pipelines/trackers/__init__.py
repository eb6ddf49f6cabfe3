"""TensorBoard and MLflow as services: options, image, container, address and token."""
