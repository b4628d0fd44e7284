"""Low-rank adapters with Flower and FedPAQ."""
