"""StateFile: the state of a run on disk, whole or absent. Nothing in a file is believed before it is checked."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedpaq.arrays import AnyArray
from fedpaq.errors import CheckpointError
from fedpaq.flower.layout import Layout
from fedpaq.flower.rounds import RoundRecord
from fedpaq.flower.state import CONFIGS, SIDES, State
from fedpaq.storage import checkpoint
from fedpaq.storage.atomic_file import StrPath

KIND = "fedpaq-flower-3"
DOWNLINK = "downlink."  # before the names of what coded downloads remember


def save_state(path: StrPath, state: State) -> None:
    """Write the state in one step: a crash leaves the old file or the new one."""
    header = {
        "kind": KIND,
        "run": state.run,
        "settings": state.settings,
        "layout": state.layout.to_json(),
        "initial": state.initial,
        "makers": state.makers,
        "evaluated": state.evaluated,
        "history": [_finite(asdict(record)) for record in state.history],
        "evaluations": _finite(state.evaluations),
    }
    raw = {"exact": state.exact}
    for name in CONFIGS:
        raw |= {name: state.configs[name].deflate(), f"given_{name}": state.given[name].deflate()}
    arrays: dict[str, AnyArray] = {name: np.frombuffer(data, np.uint8) for name, data in raw.items()}
    if state.downloads is not None:
        arrays |= {DOWNLINK + name: array for name, array in state.downloads.to_arrays().items()}
    checkpoint.save(path, header, {"params": state.params, **arrays})


def load_state(path: StrPath) -> State:
    """Read a state; raise CheckpointError on anything that is not one."""
    header, arrays = checkpoint.load(path)
    try:
        if header["kind"] != KIND:
            raise ValueError(f"kind={header['kind']!r}, but this fedpaq reads {KIND!r}")
        return _parse(header, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint={str(path)!r} is not the state of a Flower run ({error}); "
            "choose another file or move this one away"
        ) from error


def _parse(header: dict[str, Any], arrays: Mapping[str, AnyArray]) -> State:
    layout = Layout.from_json(header["layout"])
    params, exact = arrays["params"], arrays["exact"].tobytes()
    if params.shape != (layout.dimension,) or len(exact) != layout.exact_bytes:
        raise ValueError("params do not fit the layout")
    return State(
        settings=header["settings"],
        layout=layout,
        params=params.astype(np.float32),
        exact=exact,
        configs={name: _config(arrays[name].tobytes()) for name in CONFIGS},
        given={name: _config(arrays[f"given_{name}"].tobytes()) for name in CONFIGS},
        initial=str(header["initial"]),
        makers=[str(maker) for maker in header["makers"]],
        run=header["run"],
        evaluated=header["evaluated"],
        history=[_record(values) for values in header["history"]],
        evaluations={
            side: {int(at): _numbers(values) for at, values in header["evaluations"][side].items()} for side in SIDES
        },
        saved_downloads={name.removeprefix(DOWNLINK): each for name, each in arrays.items() if DOWNLINK in name},
    )


def _record(values: dict[str, Any]) -> RoundRecord:
    rejected = {int(client): reason for client, reason in values["rejected"].items()}
    return RoundRecord(**{**values, "rejected": rejected, "metrics": _numbers(values["metrics"])})


def _config(data: bytes) -> ConfigRecord:
    try:
        return ConfigRecord.inflate(data)
    except Exception as error:  # whatever a hostile file makes Flower's unpacking raise
        raise ValueError(f"a config cannot be unpacked: {error}") from error


def _finite(values: Any) -> Any:
    """Return values with NaN and infinities as None: JSON has no word for them."""
    return _each(values, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def _numbers(values: Any) -> Any:
    """Return values with None as NaN, the inverse as far as there is one."""
    return _each(values, lambda leaf: math.nan if leaf is None else leaf)


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    """Return dicts and lists with every leaf changed."""
    if isinstance(values, dict):
        return {key: _each(value, change) for key, value in values.items()}
    if isinstance(values, list):
        return [_each(value, change) for value in values]
    return change(values)
