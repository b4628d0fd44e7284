"""State: a run between two rounds. All that a restarted server needs to go on as if nothing happened.

No generator is saved: every draw is a function of (seed, round, client). The two configs are saved,
since a strategy may change them from round to round, as Flower's learning-rate schedules do.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result

from fedpaq import codec
from fedpaq.arrays import AnyArray, Float32, Float64
from fedpaq.downlink import Changes, Downlink
from fedpaq.errors import CheckpointError, ConfigError
from fedpaq.flower import protocol
from fedpaq.flower.downloads import Downloads, Sent
from fedpaq.flower.layout import Arrays, Layout, as_record
from fedpaq.flower.replies import Upload, maker_of
from fedpaq.flower.rounds import RoundRecord
from fedpaq.storage.atomic_file import StrPath

log = logging.getLogger("flwr")
SIDES = ("clients", "server")  # where an evaluation was made
CONFIGS = ("train_config", "evaluate_config")
ROUND = "server-round"  # the entry of a config that each round sets anew


@dataclass
class State:
    """The run after ``rounds_done`` rounds."""

    settings: dict[str, Any]
    layout: Layout
    params: Float32  # x_k, (p,)
    exact: bytes
    configs: dict[str, ConfigRecord]  # as they are now; the strategy may change them in each round
    given: dict[str, ConfigRecord]  # as ``start`` was given them
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # the run's identity
    evaluated: int = 0  # the last round whose evaluation is finished
    history: list[RoundRecord] = field(default_factory=list)
    evaluations: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {side: {} for side in SIDES})
    downloads: Downloads | None = None  # None: the whole model goes to everybody
    initial: str = ""  # a digest of the model that the run began with
    makers: list[str] = field(default_factory=list)  # the quantizers of the first payloads that counted
    saved_downloads: Mapping[str, AnyArray] = field(default_factory=dict)  # of a checkpoint, until taken up
    _resumed: bool = False  # whether the makers are still to be compared with the first after a resume
    _changed: bool = False  # whether a model from outside was ever adopted

    @classmethod
    def begin(
        cls,
        settings: dict[str, Any],
        record: ArrayRecord,
        exact: Sequence[str],
        configs: Mapping[str, ConfigRecord] | None = None,
        downlink: Downlink | None = None,
    ) -> State:
        """Return the state before the first round, of a finite model; the server adopts what ``downlink`` sends."""
        layout = Layout.of(record, exact)
        arrays = layout.read(record)
        _require_finite(arrays, "the initial model")
        now = dict(configs) if configs else {name: ConfigRecord() for name in CONFIGS}
        given = {name: ConfigRecord(dict(config)) for name, config in now.items()}
        params, downloads = layout.vector(arrays), None
        if isinstance(downlink, Changes):
            downloads = Downloads(downlink.stream(settings["seed"], params))
            params = downloads.stream.params
        initial = hashlib.blake2b(layout.pack(arrays), digest_size=16).hexdigest()
        return cls(settings, layout, params, layout.exact(arrays), now, given, downloads=downloads, initial=initial)

    @property
    def rounds_done(self) -> int:
        """How many rounds are behind us."""
        return len(self.history)

    def arrays(self) -> Arrays:
        """Return the model."""
        return self.layout.arrays(self.params, self.exact)

    def record(self) -> ArrayRecord:
        """Return the model as a Flower record."""
        return as_record(self.arrays())

    def model_for(self, name: str) -> Callable[[int, bool], Sent]:
        """Return what makes the model for a client, maybe whole: changes to what it holds, or all of it packed.

        Packed, since each array of a message would be several calls. The app finds it under ``name``.
        """
        if self.downloads is not None:
            downloads = self.downloads
            return lambda client, whole: downloads.send(client, name, self.exact, self.run, whole=whole)
        packed = self.layout.pack(self.arrays())
        sent = Sent(protocol.model_records(protocol.PACKED, packed, name), {}, len(packed))
        return lambda client, whole: sent

    def moved(self, mean: Float64) -> Float32:
        """Return x_{k+1}: x_k + mean in float32, or what the downlink makes of it."""
        if self.downloads is not None:
            return self.downloads.advance(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.params + mean, np.float32)

    def is_model(self, record: ArrayRecord) -> bool:
        """Return whether a record is the model as clients see it."""
        return self.layout.pack(self.layout.read(record)) == self.layout.pack(self.arrays())

    def adopt(self, record: ArrayRecord) -> bool:
        """Take the model given as x_k; return whether it differs from the one held.

        What a subclass or a wrapper made of the mean is thus what clients get.
        """
        if self.is_model(record):
            return False  # and a float32 copy of a float16 model stays as precise as it is
        arrays = self.layout.read(record)
        _require_finite(arrays, "the model given to the strategy")
        self.params, self.exact = self.layout.vector(arrays), self.layout.exact(arrays)
        if self.downloads is not None:
            self.params = self.downloads.stream.restart(self.params)
        if not self._changed:
            log.info("the model was changed outside FedPAQ's mean (said once); clients get the changed one")
        self._changed = True
        return True

    def note_makers(self, counted: Sequence[Upload]) -> None:
        """Keep which quantizers made the first payloads; say where all of the first after a resume differ from them.

        A run may mix quantizers, so that is not refused.
        """
        if not counted or (self.makers and not self._resumed):
            return
        found = sorted({maker_of(codec.read_header(upload.payload)) for upload in counted})
        if self.makers and not set(self.makers) & set(found):
            log.warning(
                "quantizer=%s made the uploads after the resume, but %s the first of this run; unless that is meant, "
                "give quantize_mod or the run config the quantizer from before",
                " and ".join(found),
                " and ".join(self.makers),
            )
        self.makers, self._resumed = self.makers or found, False

    def advance(self, record: RoundRecord, params: Float32, exact: bytes) -> None:
        """Go one round further."""
        self.params, self.exact = params, exact
        self.history.append(record)

    def report(self, metrics: Mapping[str, Any] | None, seconds: float) -> None:
        """Keep what ``aggregate_train`` returned as the metrics of the last round, and how long the round took."""
        self.history[-1] = replace(self.history[-1], metrics=dict(metrics or {}), seconds=seconds)

    def note(self, side: str, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """Keep an evaluation, if there is one."""
        if metrics is not None:
            self.evaluations[side][server_round] = dict(metrics)

    def result(self) -> Result:
        """Return Flower's result, with the rounds before a restart."""
        result = Result(arrays=self.record())
        for record in self.history:
            result.train_metrics_clientapp[record.server_round] = MetricRecord(record.metrics)
        for at, values in self.evaluations["clients"].items():
            result.evaluate_metrics_clientapp[at] = MetricRecord(values)
        for at, values in self.evaluations["server"].items():
            result.evaluate_metrics_serverapp[at] = MetricRecord(values)
        return result

    def continuing(self, fresh: State, path: StrPath) -> State:
        """Return this saved state; raise CheckpointError unless it belongs to the run ``fresh`` begins.

        The configs of ``fresh`` get the values that the saved run had last.
        """
        for name in {**fresh.settings, **self.settings}:
            _compare(name, self.settings.get(name), fresh.settings.get(name), path)
        if self.layout != fresh.layout:
            raise CheckpointError(
                f"checkpoint={str(path)!r} holds another model (p={self.layout.dimension}, this run has "
                f"p={fresh.layout.dimension}); use the same model, or another file for a new run"
            )
        if self.initial != fresh.initial:  # not refused: many apps draw their first model anew at each start
            log.warning(
                "checkpoint=%s began with another initial model than the one given, which is not used: the run goes on "
                "from the checkpoint; for a new run choose another file",
                path,
            )
        self._resumed = True
        for name, config in fresh.configs.items():
            saved, given = self.configs[name], self.given[name]
            if _entries(config) != _entries(saved):
                for key in sorted({*given, *config} - {ROUND}):
                    _compare(f"{name}[{key!r}]", given.get(key), config.get(key), path)
            config.clear()
            config.update(saved)
            self.configs[name] = config
        if fresh.downloads is not None:
            try:
                fresh.downloads.take_up(self.params, self.saved_downloads)
            except (KeyError, ValueError) as error:
                raise CheckpointError(f"checkpoint={str(path)!r} holds impossible downloads ({error})") from error
            self.downloads = fresh.downloads
        return self


def _compare(name: str, saved: Any, given: Any, path: StrPath) -> None:
    if repr(saved) != repr(given):  # as text, in which NaN equals itself
        raise CheckpointError(
            f"checkpoint={str(path)!r} was made with {name}={saved!r}, but this run has {given!r}; "
            "use the same settings, or another file for a new run"
        )


def _entries(config: ConfigRecord) -> dict[str, str]:
    return {key: repr(value) for key, value in config.items() if key != ROUND}


def _require_finite(arrays: Arrays, model: str) -> None:
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ConfigError(f"array {name!r} of {model} holds NaN or infinity")
