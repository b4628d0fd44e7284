"""Replies: nothing in them is believed before it is checked. Whatever is wrong is a WireFormatError.

The bound on hostile clients. ``max_update_norm`` bounds ||x||. A message of levels claims a norm in its header,
read before anything is decoded; an honest one has ||levels||^2 of mean at most s^2 + s sqrt(p), and may have
twice that plus 64, which honest rounding does not reach: a client cannot hide a large step behind a small norm.
A raw message is its own norm. For any other code the strategy's quantizer, or else the code itself, says how
far a message may reach: ||Q(x)||^2 has mean at most (1 + q) ||x||^2, and may be twice that.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedpaq import codec
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.flower import protocol
from fedpaq.flower.layout import Layout
from fedpaq.quantizers import Key, LowPrecision, Quantizer
from fedpaq.server.aggregation import norm_of


@dataclass(frozen=True)
class Upload:
    """What one client sent, as far as it is checked: shapes and sizes, not yet the payload's body."""

    client: int
    key: Key
    payload: bytes
    exact: bytes
    content: RecordDict  # the reply as it came, for functions that make metrics of it
    weight: float = 1.0  # how often it counts in the mean


@dataclass(frozen=True)
class Rules:
    """What the server accepts."""

    layout: Layout
    quantizer: Quantizer | None = None
    max_update_norm: float | None = None
    seed: int = 0
    round: int = 0  # FedPAQ's, from 0
    weighted_by: str | None = None  # the metric that weights the model; None: every client counts once

    def read(self, client: int, reply: FlowerMessage) -> Upload:
        """Return a reply's upload, or raise WireFormatError with the reason."""
        if reply.has_error():
            raise WireFormatError(f"the client failed: {reply.error.reason}")
        content = reply.content
        try:
            record = protocol.read_record(content, "the reply has no 'fedpaq' record")
        except ConfigError as error:
            raise WireFormatError(str(error)) from error
        if "needs" in record:
            raise WireFormatError(f"it needs the whole model: {record['needs']!s}")
        key = Key(seed=self.seed, round=self.round, client=client)
        upload = Upload(
            client, key, _payload(content, record), self._exact(record.get("exact")), content, self._weight(content)
        )
        self._check(upload)
        return upload

    def _weight(self, content: RecordDict) -> float:
        if self.weighted_by is None:
            return 1.0
        metrics = next(iter(content.metric_records.values()), MetricRecord())
        weight = usable_weight(metrics.get(self.weighted_by))
        if not weight:
            raise WireFormatError(
                f"{self.weighted_by}={metrics.get(self.weighted_by)!r} in the metrics of the reply cannot weight the "
                "model; return a positive number, or use the uniform mean"
            )
        return weight

    def _exact(self, exact: Any) -> bytes:
        if not isinstance(exact, bytes) or len(exact) != self.layout.exact_bytes:
            size = len(exact) if isinstance(exact, bytes) else "no"
            raise WireFormatError(f"{size} bytes of exact arrays where the layout says {self.layout.exact_bytes}")
        for name, values in self.layout.exact_arrays(exact).items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise WireFormatError(f"exact array {name!r} holds NaN or infinity")
        return exact

    def _check(self, upload: Upload) -> None:
        """Check size, header, quantizer and norm."""
        payload = upload.payload
        most = 8 * self.layout.dimension + 1024  # a norm and two bytes of level for every coordinate
        if len(payload) > most:
            raise WireFormatError(f"a payload of {len(payload)} bytes is too long; at most {most} are needed")
        header = codec.read_header(payload, dimension=self.layout.dimension)
        if self.quantizer is not None and not could_be_from(self.quantizer, header):
            raise WireFormatError(
                f"the payload was made with quantizer={maker_of(header)}, but the strategy demands "
                f"{self.quantizer.name}; give quantize_mod the same settings"
            )
        if self.max_update_norm is not None:
            self._check_norm(upload, header, self.max_update_norm)

    def _check_norm(self, upload: Upload, header: codec.Header, most: float) -> None:
        if header.levels:
            claimed = float(np.linalg.norm(header.norms.astype(np.float64)))
            if claimed > most:
                raise WireFormatError(f"norm={claimed:.6g} of the update exceeds max_update_norm={most:.6g}")
            s = header.levels
            most = claimed * math.sqrt(2 * (1 + math.sqrt(header.bucket_width) / s) + 64 / s**2)
        elif header.code_name != "raw":
            most *= math.sqrt(2 * (1 + self._variance(header)))
        norm = norm_of(codec.decode(upload.payload, dimension=self.layout.dimension, key=upload.key))
        if norm > most:
            raise WireFormatError(
                f"norm={norm:.6g} of the message exceeds {most:.6g}, the most an honest update can give"
            )

    def _variance(self, header: codec.Header) -> float:
        """Return the q of whoever made a payload with this header."""
        if self.quantizer is not None:
            return self.quantizer.variance_bound(self.layout.dimension)
        variance = codec.code_by_id(header.code).variance
        if variance is None:
            raise WireFormatError(
                f"max_update_norm cannot judge a payload of code={header.code_name}: give the strategy its "
                "quantizer=..."
            )
        return variance(header)


def usable_weight(value: Any) -> float:
    """Return a weight that a client gives: a positive finite number, else 0."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else 0.0


def could_be_from(quantizer: Quantizer, header: codec.Header) -> bool:
    """Return whether a quantizer makes payloads with such a header; it may say so itself by ``accepts``."""
    accepts = getattr(quantizer, "accepts", None)
    if accepts is not None:
        return bool(accepts(header))
    own = getattr(quantizer, "wire_code", None)
    return own is not None and header.code in own.names


def maker_of(header: codec.Header) -> str:
    """Return the quantizer that made a payload with this header, as far as it says.

    ``Rotated`` makes messages of levels, too, where they are better.
    """
    return LowPrecision(header.levels, header.bucket_size).name if header.levels else header.code_name


def _payload(content: RecordDict, record: ConfigRecord) -> bytes:
    """Return the payload: in the record, or where it is long an array."""
    found = [array for arrays in content.array_records.values() for array in arrays.values()]
    payload = record.get("payload")
    if payload is None and len(found) == 1 and found[0].stype == protocol.PAYLOAD:
        payload = found.pop().data
    if not isinstance(payload, bytes) or found:
        beside = " beside a payload" if isinstance(payload, bytes) else ""
        raise WireFormatError(f"the reply holds {len(found)} arrays{beside}; exactly one payload is expected")
    return payload
