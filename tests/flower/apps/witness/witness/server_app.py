"""The example's server as it is."""

from flower_mnist.server_app import app

__all__ = ["app"]
