"""The MNIST example, with a witness."""
