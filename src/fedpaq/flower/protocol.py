"""Protocol: names on the wire between mod and strategy.

A question is a ``train`` message whose record ``fedpaq`` says what is asked:

    WHO    who are you?   -> reply {client}: the partition-id of the node config, -1 where it has none
    TRAIN  train, please  -> reply {payload, exact}; the model comes packed

With coded downloads the model comes as frames instead, to TRAIN and EVALUATE alike (``downloads``); a reply says which
frame the client holds now, or that it needs the whole model.

Flower sends a message as objects, each in a call with a kilobyte of headers: a record is one, an array another three.
So model and payload travel in records unless they are long. The model has a record of its own: the SuperLink keeps
equal objects once, and the other record differs from client to client.

Flower knows a node by a random number that changes when the node registers again. FedPAQ needs a
number that stays: it keys the draws, so it must be the same after a restart and in the simulator.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpaq.errors import ConfigError

VERSION = 3
RECORD = "fedpaq"  # the ConfigRecord in questions and replies
WHO, TRAIN, EVALUATE = "who", "train", "evaluate"
PACKED, FRAMES = "fedpaq.packed", "fedpaq.frames"  # name and serialization type of a model sent whole, or coded
PAYLOAD = "fedpaq.payload"  # and of an upload
MODEL = "fedpaq.model"  # the ConfigRecord of a model, where it is not long
MOST_IN_RECORD = 2**22  # bytes; Flower sends arrays in chunks, records whole
NO_CLIENT = -1


def bytes_array(kind: str, data: bytes) -> Array:
    """Return raw bytes as a Flower array that only fedpaq can read; its ``.numpy()`` raises."""
    return Array(dtype="uint8", shape=(len(data),), stype=kind, data=data)


def model_records(kind: str, data: bytes, name: str) -> dict[str, ConfigRecord | ArrayRecord]:
    """Return the record of a model in a question, for an app that finds it as the ArrayRecord called ``name``."""
    if len(data) <= MOST_IN_RECORD:
        return {MODEL: ConfigRecord({kind: data, "name": name})}
    return {name: ArrayRecord({kind: bytes_array(kind, data)})}


def model_in(content: RecordDict) -> tuple[str, str, bytes]:
    """Take the model out of a question; return the name for the app, the kind and the data."""
    record = content.config_records.get(MODEL)
    for kind in (PACKED, FRAMES):
        if record is not None and isinstance(data := record.get(kind), bytes):
            del content[MODEL]
            return str(record["name"]), kind, data
        for name, arrays in content.array_records.items():
            if kind in arrays:
                return name, kind, arrays[kind].data
    raise ConfigError("the message holds no model of fedpaq's; install the same fedpaq on server and clients")


def upload_records(payload: bytes, name: str, **values: int | bytes) -> dict[str, ConfigRecord | ArrayRecord]:
    """Return the records of an upload in a reply; a long payload is an array, called ``name`` as the model was."""
    if len(payload) <= MOST_IN_RECORD:
        return {RECORD: answer(payload=payload, **values)}
    return {RECORD: answer(**values), name: ArrayRecord({PAYLOAD: bytes_array(PAYLOAD, payload)})}


def question(asked: str, **values: int | str | bytes) -> ConfigRecord:
    """Return the record of a question."""
    return ConfigRecord({"version": VERSION, "asked": asked, **values})


def answer(**values: int | str | bytes) -> ConfigRecord:
    """Return the record of a reply."""
    return ConfigRecord({"version": VERSION, **values})


def read_record(content: RecordDict, missing: str) -> ConfigRecord:
    """Return the fedpaq record of a message; raise ConfigError(``missing``), or name another version."""
    record = content.config_records.get(RECORD)
    if record is None:
        raise ConfigError(missing)
    if record.get("version") != VERSION:
        raise ConfigError(
            f"version={record.get('version')!r} of the other side's Flower protocol is not this side's {VERSION}; "
            "install the same fedpaq on server and clients"
        )
    return record


def record_in(reply: Message) -> ConfigRecord:
    """Return the fedpaq record of a reply, empty where it has none."""
    found = reply.content.config_records.get(RECORD) if reply.has_content() else None
    return ConfigRecord() if found is None else found
