"""STORAGE: files that are whole or absent, checkpoints, locks, strict JSON."""
