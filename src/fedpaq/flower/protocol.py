"""Protocol: names on the wire between mod and strategy.

A question is a ``train`` message whose record ``fedpaq`` says what is asked:

    WHO    who are you?   -> reply {client}: the partition-id of the node config, -1 where it has none
    TRAIN  train, please  -> reply {exact} beside the payload; the model comes as one packed array

With coded downloads the model comes as frames instead, to TRAIN and EVALUATE alike (``downloads``); a reply says which
frame the client holds now, or that it needs the whole model.

Flower knows a node by a random number that changes when the node registers again. FedPAQ needs a
number that stays: it keys the draws, so it must be the same after a restart and in the simulator.
"""

from flwr.app import Array, ConfigRecord, RecordDict

from fedpaq.errors import ConfigError

VERSION = 2
RECORD = "fedpaq"  # the ConfigRecord in questions and replies
WHO, TRAIN, EVALUATE = "who", "train", "evaluate"
PACKED, FRAMES = "fedpaq.packed", "fedpaq.frames"  # name and serialization type of a model sent whole, or coded
PAYLOAD = "fedpaq.payload"  # and of an upload
NO_CLIENT = -1


def bytes_array(kind: str, data: bytes) -> Array:
    """Return raw bytes as a Flower array that only fedpaq can read; its ``.numpy()`` raises."""
    return Array(dtype="uint8", shape=(len(data),), stype=kind, data=data)


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
