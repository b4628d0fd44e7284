"""Palette: how the curves of a panel are told apart, by colour, marker and dash at once.

The colours are those of Okabe and Ito, which people with any common colour blindness can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """A colour, and a marker and dash as matplotlib and as plotly name them."""

    colour: str
    marker: str
    dash: str
    plotly_marker: str
    plotly_dash: str


LOOKS = (
    Look("#0072B2", "o", "-", "circle", "solid"),
    Look("#D55E00", "s", "--", "square", "dash"),
    Look("#009E73", "^", "-.", "triangle-up", "dashdot"),
    Look("#CC79A7", "D", ":", "diamond", "dot"),
    Look("#E69F00", "v", "-", "triangle-down", "solid"),
    Look("#56B4E9", "X", "--", "x", "dash"),
)
