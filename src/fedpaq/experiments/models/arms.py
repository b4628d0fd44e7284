"""Arms: what a network is trained with, up and down."""

from __future__ import annotations

import re
from dataclasses import dataclass

RATES = {0.0024: 0.05, 0.008: 0.1, 0.03: 0.2, 0.1: 0.3}  # bits up: bits down, a coordinate; fixed before any run


@dataclass(frozen=True)
class Arm:
    """A quantizer for uploads, and one for downloads, or None for the whole model as float32."""

    quantizer: str
    downlink: str | None = None

    @property
    def label(self) -> str:
        """Its name in pictures and tables.

        >>> Arm("none").label, Arm("low-precision:64").label, Arm("rotated:0.03", "rotated:0.2").label
        ('float32', 's = 64', 'Rotated 0.03 bits, down 0.2')
        """
        name, _, number = self.quantizer.partition(":")
        up = {"none": "float32", "low-precision": f"s = {number}"}.get(name, f"Rotated {number} bits")
        return up if self.downlink is None else f"{up}, down {self.downlink.partition(':')[2]}"

    @property
    def slug(self) -> str:
        """A name for files.

        >>> Arm("rotated:0.03", "rotated:0.2").slug
        'rotated-0.03-down-rotated-0.2'
        """
        text = self.quantizer if self.downlink is None else f"{self.quantizer}-down-{self.downlink}"
        return re.sub(r"[^\w.]+", "-", text)


FLOAT32 = Arm("none")
PLAIN = (FLOAT32, Arm("low-precision:1"), Arm("low-precision:64"), *(Arm(f"rotated:{up}") for up in RATES))
CODED = tuple(Arm(f"rotated:{up}", f"rotated:{down}") for up, down in RATES.items())
