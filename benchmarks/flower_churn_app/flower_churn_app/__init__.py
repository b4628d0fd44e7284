"""Clients and a server that keep what they send and add."""
