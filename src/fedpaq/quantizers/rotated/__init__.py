"""ROTATED: an unbiased quantizer near the rate-distortion limit, with its own wire code.

It is built as a quantizer from outside would be: nothing below the registry knows it.
"""

from fedpaq.quantizers.rotated.message import RotatedMessage
from fedpaq.quantizers.rotated.quantizer import Rotated

__all__ = ["Rotated", "RotatedMessage"]
