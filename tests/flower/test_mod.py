"""The client's half: what the app sees, what leaves the client, what fails and how."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx

import fedpaq
from fedpaq import ConfigError, codec
from fedpaq.flower import FedPAQ, protocol, quantize_mod
from fedpaq.flower.layout import Layout
from flower.flower_apps import drifting_app, payload_of, quantizing, record
from flower.in_process_grid import InProcessGrid

pytestmark = pytest.mark.flower


def train_message(arrays, *, seed=0, round=0, client=0):
    layout = Layout.of(arrays)
    packed = protocol.bytes_array(protocol.PACKED, layout.pack(layout.read(arrays)))
    from flwr.app import ArrayRecord

    asked = protocol.question(protocol.TRAIN, seed=str(seed), round=round, client=client, layout=layout.to_json())
    content = RecordDict({"arrays": ArrayRecord({protocol.PACKED: packed}), protocol.RECORD: asked})
    return Message(content, 1, "train")


def context(partition_id=0):
    return Context(1, 1, {"partition-id": partition_id}, RecordDict(), {})


def test_the_reply_holds_the_payload_of_the_quantized_update(rng):
    before = rng.normal(size=50).astype(np.float32)
    after = before + rng.normal(size=50).astype(np.float32)
    app = ClientApp(mods=[quantize_mod(levels=3, bucket_size=16)])

    @app.train()
    def train(message, context):
        np.testing.assert_array_equal(message.content["arrays"]["w"].numpy(), before)
        return Message(RecordDict({"arrays": record(w=after)}), reply_to=message)

    reply = app(train_message(record(w=before), seed=2**64 - 1, round=4, client=9), context())
    message = fedpaq.LowPrecision(3, 16).quantize(after - before, key=fedpaq.Key(seed=2**64 - 1, round=4, client=9))
    assert payload_of(reply) == codec.encode(message)


@pytest.mark.parametrize("text", ["low-precision:3", "rotated:2", "none"])
def test_the_quantizer_is_given_by_text_by_object_or_by_the_run_config(text):
    quantizer = fedpaq.quantizers.parse(text)
    by_config = Context(1, 1, {"partition-id": 0}, RecordDict(), {"quantizer": text})
    replies = [
        payload_of(drifting_app(mod)(train_message(record(w=np.zeros(50, np.float32))), given))
        for mod, given in (
            (quantize_mod(quantizer=text), context()),
            (quantize_mod(quantizer=quantizer), context()),
            (quantize_mod(), by_config),
        )
    ]
    assert replies[0] == replies[1] == replies[2]
    assert quantizer.accepts(codec.read_header(replies[0]))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16])
def test_numbers_of_numpy_are_taken_as_pythons(kind):
    mods = quantize_mod(levels=kind(4), bucket_size=kind(16)), quantize_mod(levels=4, bucket_size=16)
    replies = [payload_of(drifting_app(mod)(train_message(record(w=np.zeros(50))), context())) for mod in mods]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("bad", [np.float32(4), 4.0, "4", True, np.array([4])])
def test_levels_that_are_not_an_integer_are_refused(bad):
    with pytest.raises(ConfigError, match=r"^levels=.* is not an integer; choose 1\.\."):
        quantize_mod(levels=bad)


def test_levels_and_a_quantizer_cannot_both_be_given():
    with pytest.raises(ConfigError, match="bucket_size=16 has no meaning without levels; leave out one of the two"):
        quantize_mod(levels=None, bucket_size=16)
    for options in ({"levels": 1}, {"bucket_size": 4}, {"levels": None}):
        with pytest.raises(ConfigError, match="give one of the two"):
            quantize_mod(quantizer="none", **options)


def test_without_levels_the_update_travels_as_float32():
    app = drifting_app(quantize_mod(levels=None))
    reply = app(train_message(record(w=np.zeros(5, np.float32))), context(1))
    np.testing.assert_array_equal(
        codec.decode(payload_of(reply), dimension=5).dequantize(), np.full(5, 0.2, np.float32)
    )


def test_the_app_sees_the_model_as_flower_would_send_it():
    sent = record(w=np.ones((2, 3), np.float16), n=np.array(3), flag=np.array([True]))
    seen = {}
    app = ClientApp(mods=[quantize_mod(levels=1)])

    @app.train()
    def train(message, context):
        seen.update({name: array.numpy() for name, array in message.content["arrays"].items()})
        assert protocol.RECORD not in message.content
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    app(train_message(sent), context())
    assert list(seen) == ["w", "n", "flag"]
    for name, array in sent.items():
        np.testing.assert_array_equal(seen[name], array.numpy(), strict=True)


def test_metrics_and_other_records_pass_untouched():
    app = ClientApp(mods=[quantize_mod(levels=1)])

    @app.train()
    def train(message, context):
        content = {"model": message.content["arrays"], "metrics": MetricRecord({"loss": 0.5})}
        return Message(RecordDict(content), reply_to=message)

    reply = app(train_message(record(w=np.zeros(3, np.float32))), context())
    assert reply.content["metrics"]["loss"] == 0.5
    assert "model" not in reply.content and isinstance(reply.content[protocol.RECORD]["payload"], bytes)


def test_evaluate_messages_pass_untouched():
    app = drifting_app(quantize_mod(levels=1))
    message = Message(RecordDict({"arrays": record(w=np.ones(3, np.float32))}), 1, "evaluate")
    assert app(message, context(2)).content["metrics"]["mean"] == 1.0


def test_the_mod_without_the_strategy_says_what_is_missing():
    app = drifting_app(quantize_mod(levels=1))
    message = Message(RecordDict({"arrays": record(w=np.ones(3, np.float32))}), 1, "train")
    reply = app(message, context())
    with pytest.raises(TypeError, match=r"strategy is not FedPAQ; write strategy = fedpaq\.flower\.FedPAQ"):
        reply.content["arrays"]["model"].numpy()


def test_the_strategy_without_the_mod_says_what_is_missing():
    strategy = FedPAQ(clients_per_round=2)
    with pytest.raises(ConfigError, match=r"ClientApp\(mods=\[fedpaq\.flower\.quantize_mod\(\)\]\)"):
        strategy.start(InProcessGrid(drifting_app(), 3), record(w=np.zeros(3, np.float32)))


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian, FedProx])
def test_a_run_without_the_strategy_fails_and_says_what_is_missing(strategy):
    settings = {"proximal_mu": 0.1} if strategy is FedProx else {}
    grid = InProcessGrid(drifting_app(quantize_mod()), 2)
    with pytest.raises(TypeError, match="the ServerApp's strategy is not FedPAQ"):
        strategy(fraction_evaluate=0.0, **settings).start(grid, record(w=np.zeros(3, np.float32)), num_rounds=1)


@pytest.mark.parametrize("between", [[], [fixedclipping_mod]])
def test_the_mod_installed_twice_is_named_before_any_work(between):
    grid = InProcessGrid(drifting_app(quantize_mod(), *between, quantize_mod()), 2)
    with pytest.raises(ConfigError, match="quantize_mod is in the list of mods twice") as refused:
        FedPAQ(clients_per_round=2).start(grid, record(w=np.zeros(3, np.float32)))
    assert "missing" not in str(refused.value)
    assert all("arrays" not in message.content for message in grid.sent)


def test_the_default_keeps_half_a_bit_per_parameter():
    reply = drifting_app(quantize_mod())(train_message(record(w=np.zeros(10_000, np.float32))), context())
    assert fedpaq.Rotated(bits=0.5).accepts(codec.read_header(payload_of(reply)))


def test_another_version_of_the_protocol_is_named():
    message = train_message(record(w=np.zeros(3, np.float32)))
    message.content[protocol.RECORD]["version"] = 1
    with pytest.raises(ConfigError, match=r"version=1 .* is not this side's 3; install the same fedpaq"):
        drifting_app(quantize_mod(levels=1))(message, context())


@pytest.mark.parametrize("given", ["three", -2, 2**32, 1.5, True])
def test_a_partition_id_that_is_no_client_number_is_refused(given):
    message = Message(RecordDict({protocol.RECORD: protocol.question(protocol.WHO)}), 1, "train")
    with pytest.raises(ConfigError, match="partition-id="):
        drifting_app(quantize_mod(levels=1))(message, context(given))


def test_a_reply_needs_exactly_one_model():
    app = ClientApp(mods=[quantize_mod(levels=1)])

    @app.train()
    def train(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    with pytest.raises(ConfigError, match="holds 0 ArrayRecords"):
        app(train_message(record(w=np.zeros(3, np.float32))), context())


def test_a_diverged_client_fails_by_name():
    app = ClientApp(mods=[quantize_mod(levels=1)])

    @app.train()
    def train(message, context):
        return Message(RecordDict({"arrays": record(w=np.float32([1, np.nan]))}), reply_to=message)

    with pytest.raises(fedpaq.NonFiniteUpdateError, match="client=7 in round=3"):
        app(train_message(record(w=np.zeros(2, np.float32)), round=3, client=7), context())


def test_the_mod_is_made_by_a_call_with_named_settings():
    with pytest.raises(ConfigError, match=r"write mods=\[quantize_mod\(quantizer="):
        quantize_mod(1)
    app = drifting_app(quantize_mod)  # forgotten parentheses
    with pytest.raises(ConfigError, match=r"write mods=\[quantize_mod\(quantizer="):
        app(train_message(record(w=np.zeros(3, np.float32))), context())


def test_a_client_that_only_quantizes_imports_neither_torch_nor_the_strategy():
    code = "import sys, fedpaq.flower; fedpaq.flower.quantize_mod(levels=1); print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(loaded.stdout.split()) & {"torch", "fedpaq.flower.strategy", "fedpaq.problems"}


def test_a_value_of_the_server_s_record_that_is_no_integer_is_refused():
    grid = quantizing(1)
    strategy = FedPAQ(clients_per_round=1)
    (message,) = strategy.configure_train(1, record(w=np.zeros(2, np.float32)), ConfigRecord(), grid)
    message.content[protocol.RECORD]["round"] = "one"
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="value='one' in the server's 'fedpaq' record is not an integer"):
        drifting_app(quantize_mod(levels=1))(message, context)


def test_a_train_message_without_a_packed_model_is_refused():
    asked = protocol.question(protocol.TRAIN, seed="0", round=0, client=0, layout="[]")
    content = RecordDict({"arrays": record(w=np.zeros(2, np.float32)), protocol.RECORD: asked})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="holds no model of fedpaq's"):
        drifting_app(quantize_mod(levels=1))(Message(content, 1, "train"), context)


def test_a_quantizer_made_for_one_dimension_can_take_part():
    grid = InProcessGrid(drifting_app(quantize_mod(quantizer="rotated:2,blocks=8")), 2)
    strategy = FedPAQ(clients_per_round=2, fraction_evaluate=0.0)
    strategy.start(grid, record(w=np.zeros(1000, np.float32)), num_rounds=1)
    assert strategy.history[0].counted == [0, 1]
