"""TRIAL: a whole Flower deployment on loopback, for tests and demonstrations."""
