"""DATASETS: what they are, where they are found, and how their formats are read."""
