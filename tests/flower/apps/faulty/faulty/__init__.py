"""Clients that misbehave on demand."""
