"""The client's half: one line in a Flower ClientApp.

    app = ClientApp(mods=[quantize_mod()])

A train message arrives with the model x_k packed. The mod hands the app the model as
Flower would, lets it train, and replaces the trained model in the reply by the payload of
Q(x_local - x_k) (Alg. 1, line 10). Seed, round and client come from the server, so the payload is
the one the simulator would make. No torch here: every message may start a new process.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedpaq import codec
from fedpaq.downlink.stream import NOTHING
from fedpaq.errors import ConfigError
from fedpaq.flower import protocol
from fedpaq.flower.kept_model import KeptModel, NeedsModel
from fedpaq.flower.layout import Layout, as_record
from fedpaq.quantizers import Identity, LowPrecision, Quantizer, as_quantizer
from fedpaq.randomness import Key

log = logging.getLogger("flwr")
App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]

DEFAULT = "rotated:0.5"
UNSET = object()  # None means: not quantized
NO_STRATEGY = (
    "quantize_mod is installed in the ClientApp, but the ServerApp's strategy is not FedPAQ; "
    "write strategy = fedpaq.flower.FedPAQ(clients_per_round=...)"
)
TWICE = "quantize_mod is in the list of mods twice, but an update is quantized once; remove one of the two"


def quantize_mod(
    *misplaced: Any, quantizer: Quantizer | str | None = None, levels: Any = UNSET, bucket_size: int | None = None
) -> Mod:
    """Return the mod that uploads Q(x_local - x_received) instead of the model.

    ``quantizer`` is any quantizer or its text, such as ``"rotated:0.03"``. ``levels`` [s] and ``bucket_size``
    are short for ``LowPrecision``; ``levels=None`` sends the update as float32. Without any of them the run
    config says it (``quantizer = "rotated:0.03"``), and where it does not, half a bit per parameter is spent
    (``"rotated:0.5"``), which keeps the accuracy: see the table in docs/flower.md. Works for any app whose
    train reply holds one ArrayRecord.

    >>> app = ClientApp(mods=[quantize_mod()])  # doctest: +SKIP
    """
    if misplaced:
        raise ConfigError("quantize_mod takes named settings only; write mods=[quantize_mod(quantizer=...)]")
    by_levels = levels is not UNSET or bucket_size is not None
    if quantizer is not None and by_levels:
        raise ConfigError("quantize_mod got quantizer= and levels= or bucket_size=; give one of the two")
    if levels is None and bucket_size is not None:
        raise ConfigError(f"bucket_size={bucket_size!r} has no meaning without levels; leave out one of the two")
    fixed: Quantizer | None = None if quantizer is None else as_quantizer(quantizer)
    if by_levels:
        fixed = Identity() if levels is None else LowPrecision(1 if levels is UNSET else levels, bucket_size)

    def mod(message: Message, context: Context, call_next: App) -> Message:
        trains = message.metadata.message_type.split(".")[0] == "train"
        if not trains and protocol.RECORD not in message.content.config_records:
            return call_next(message, context)
        if protocol.RECORD not in message.content:
            return _refusal(message, NO_STRATEGY)
        asked = protocol.read_record(message.content, NO_STRATEGY)
        chosen = as_quantizer(str(context.run_config.get("quantizer", DEFAULT))) if fixed is None else fixed
        if asked["asked"] == protocol.WHO:
            if any(getattr(each, "quantizes", False) for each in _mods_after(call_next)):
                raise ConfigError(TWICE)
            _warm_up(chosen)
            who = protocol.answer(client=client_of(context))
            return Message(RecordDict({protocol.RECORD: who}), reply_to=message)
        key = Key(seed=int(str(asked["seed"])), round=_int(asked["round"]), client=_int(asked["client"]))
        layout = Layout.from_json(str(asked["layout"]))
        try:
            received, holds = _hand_over(message, layout, asked, context)
        except NeedsModel as error:
            return Message(RecordDict({protocol.RECORD: protocol.answer(needs=str(error))}), reply_to=message)
        reply = call_next(message, context)
        if reply.has_content():
            if trains:
                _replace_model(reply, layout, received, chosen, key, holds)
            else:
                reply.content[protocol.RECORD] = protocol.answer(holds=holds)
        return reply

    mod.quantizes = True  # type: ignore[attr-defined]
    return mod


def _mods_after(call_next: App) -> Iterator[Any]:
    """Yield the mods that Flower calls after this one: it chains them as closures."""
    while getattr(call_next, "__closure__", None):
        inside = inspect.getclosurevars(call_next).nonlocals  # type: ignore[arg-type]
        if "_mod" not in inside:
            return
        yield inside["_mod"]
        call_next = inside["_ffn"]


def _refusal(message: Message, reason: str) -> Message:
    """Return a reply on which a strategy that averages models fails, with the reason.

    An error reply would only be logged: FedAvg then goes on, round after round, with the model it has.
    """
    log.error("%s", reason)
    array = Array(dtype="float32", shape=(0,), stype=f"fedpaq ({reason})", data=b"")
    content = RecordDict({"arrays": ArrayRecord({"model": array}), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def client_of(context: Context) -> int:
    """Return the client's own number: ``partition-id`` of the node config, -1 where it has none."""
    given = context.node_config.get("partition-id", protocol.NO_CLIENT)
    if isinstance(given, bool) or not isinstance(given, int) or not -1 <= given < 2**32:
        raise ConfigError(f"partition-id={given!r} of the node config is not a client number; choose 0..2^32-1")
    return given


def _warm_up(quantizer: Quantizer) -> None:
    """Make the numeric kernels ready: compiled at first use on a machine, when no deadline runs yet."""
    for size in (2, 785, 5000, 2**17):  # which kernels an update takes depends on its size
        update = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        try:
            codec.encode(quantizer.quantize(update, key=Key(seed=0)))
        except Exception as error:  # the quantizer may be made for other sizes; the first update decides
            log.debug("the quantizer cannot be warmed up with %d coordinates: %s", size, error)


def _hand_over(message: Message, layout: Layout, asked: ConfigRecord, context: Context) -> tuple[dict[str, Any], int]:
    """Unpack the model in ``message`` for the app, as Flower would have sent it; return its arrays and its frame."""
    del message.content[protocol.RECORD]
    name, kind, data = protocol.model_in(message.content)
    if kind == protocol.PACKED:
        received, holds = layout.unpack(data), NOTHING
    else:
        params, holds = KeptModel.of(asked, context).receive(asked, data, layout.dimension)
        received = layout.arrays(params, _bytes(asked["exact"]))
    message.content[name] = as_record(received)
    return received, holds


def _replace_model(
    reply: Message, layout: Layout, received: dict[str, Any], quantizer: Quantizer, key: Key, holds: int
) -> None:
    """Replace the model that the app trained by the payload of its update."""
    found = list(reply.content.array_records.items())
    if len(found) != 1:
        raise ConfigError(
            f"the train reply holds {len(found)} ArrayRecords; quantize_mod needs exactly one, the trained model"
        )
    name, record = found[0]
    trained = layout.read(record)
    message = quantizer.quantize(layout.update(trained, received), key=key)
    del reply.content[name]
    exact = layout.exact(trained)
    reply.content.update(protocol.upload_records(codec.encode(message), name, holds=holds, exact=exact))


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ConfigError("the exact arrays in the server's 'fedpaq' record are not bytes")
    return value


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"value={value!r} in the server's 'fedpaq' record is not an integer")
    return value
