"""MNIST digits 0 and 8 with Flower and FedPAQ."""
