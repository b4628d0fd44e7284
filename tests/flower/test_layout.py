"""Which arrays of a model are quantized, and what happens to the others."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import ConfigError
from fedpaq.flower.layout import FLOATS, WHOLES, Layout, as_record

pytestmark = pytest.mark.flower


def record(**arrays):
    return ArrayRecord({name.replace("__", "."): Array(np.asarray(values)) for name, values in arrays.items()})


def a_model():
    return record(
        conv__weight=np.arange(6, dtype=np.float32).reshape(2, 3),
        bn__running_var=np.ones(2, np.float32),
        bn__num_batches_tracked=np.array(7),
        half=np.array([0.5, -2.0], np.float16),
        double=np.array([[1e-3]], np.float64),
        empty=np.zeros((0, 4), np.float32),
        mask=np.array([True, False]),
    )


def test_floats_form_the_vector_in_the_record_s_order():
    layout = Layout.of(a_model())
    assert [slot.name for slot in layout.slots if slot.quantized] == ["conv.weight", "half", "double", "empty"]
    vector = layout.vector(layout.read(a_model()))
    assert vector.dtype == np.float32
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 0.5, -2.0, np.float32(1e-3)]


def test_integers_booleans_and_batch_statistics_are_exact():
    layout = Layout.of(a_model())
    names = [slot.name for slot in layout.exact_slots]
    assert names == ["bn.running_var", "bn.num_batches_tracked", "mask"]
    arrays = layout.read(a_model())
    exact = layout.exact(arrays)
    assert len(exact) == layout.exact_bytes == 8 + 8 + 2
    for name, values in layout.exact_arrays(exact).items():
        np.testing.assert_array_equal(values, arrays[name], strict=True)


def test_patterns_decide_what_else_is_exact():
    layout = Layout.of(a_model(), exact=["conv.*"])
    assert [slot.name for slot in layout.exact_slots] == ["conv.weight", "bn.num_batches_tracked", "mask"]


def test_packing_gives_back_every_dtype_and_shape():
    layout = Layout.of(a_model())
    arrays = layout.read(a_model())
    again = Layout.from_json(layout.to_json())
    assert again == layout
    for name, values in again.unpack(layout.pack(arrays)).items():
        np.testing.assert_array_equal(values, arrays[name], strict=True)


def test_the_model_of_a_vector_has_its_own_dtypes():
    layout = Layout.of(a_model())
    arrays = layout.read(a_model())
    model = layout.arrays(layout.vector(arrays), layout.exact(arrays))
    assert list(model) == [slot.name for slot in layout.slots]
    assert {name: (str(values.dtype), values.shape) for name, values in model.items()} == {
        slot.name: (slot.dtype, slot.shape) for slot in layout.slots
    }
    assert model["double"] == np.float64(np.float32(1e-3))  # the server's copy is float32
    again = Layout.of(as_record(model))
    assert again == layout


@given(st.lists(st.tuples(st.sampled_from((*FLOATS, *WHOLES)), st.lists(st.integers(0, 3), max_size=3))))
@settings(max_examples=60, deadline=None)
def test_any_mix_of_arrays_survives_the_round_trip(kinds):
    rng = np.random.default_rng(len(kinds))
    arrays = {f"a{i}": rng.integers(0, 2, shape).astype(dtype) for i, (dtype, shape) in enumerate(kinds)}
    arrays["last"] = rng.normal(size=3).astype(np.float32)
    layout = Layout.of(as_record(arrays))
    for name, values in layout.unpack(layout.pack(arrays)).items():
        np.testing.assert_array_equal(values, arrays[name], strict=True)
    model = layout.arrays(layout.vector(arrays), layout.exact(arrays))
    for name, values in model.items():  # small whole numbers are exact in every dtype
        np.testing.assert_array_equal(values, arrays[name], strict=True)


def test_the_update_of_float32_is_the_float32_difference():
    before, after = record(w=np.float32([1.0, 1e-8])), record(w=np.float32([1.1, 3e-8]))
    layout = Layout.of(before)
    update = layout.update(layout.read(after), layout.read(before))
    np.testing.assert_array_equal(update, np.float32([1.1, 3e-8]) - np.float32([1.0, 1e-8]), strict=True)


def test_the_update_of_float64_is_taken_before_rounding():
    before, after = record(w=np.array([1.0])), record(w=np.array([1.0 + 1e-12]))
    layout = Layout.of(before)
    (update,) = layout.update(layout.read(after), layout.read(before)).tolist()
    assert update == pytest.approx(1e-12, rel=1e-3)  # in float32 it would be 0


def test_an_app_may_return_another_float_type():
    before = record(w=np.float16([1.0]))
    layout = Layout.of(before)
    update = layout.update(layout.read(record(w=np.array([1.25]))), layout.read(before))
    assert update.tolist() == [0.25]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (record(w=np.zeros((3, 2), np.float32), n=np.array(1)), r"'w' came back with shape \(3, 2\)"),
        (record(w=np.zeros((2, 3), np.int32), n=np.array(1)), r"'w' came back with dtype=int32"),
        (record(w=np.zeros((2, 3), np.float32), n=np.array(1.0)), r"'n' came back with dtype=float64"),
        (record(w=np.zeros((2, 3), np.float32)), r"missing \['n'\], new none"),
        (record(w=np.zeros((2, 3), np.float32), n=np.array(1), m=np.array(1)), r"new \['m'\]"),
    ],
)
def test_a_model_that_changed_is_refused_by_name(returned, message):
    layout = Layout.of(record(w=np.zeros((2, 3), np.float32), n=np.array(1)))
    with pytest.raises(ConfigError, match=message):
        layout.read(returned)


@pytest.mark.parametrize("dtype", ["complex64", "longdouble", "bfloat16", "datetime64[s]"])
def test_other_dtypes_are_refused_by_name(dtype):
    array = Array(dtype=dtype, shape=(2,), stype="numpy.ndarray", data=b"")
    with pytest.raises(ConfigError, match=r"array 'w' has dtype="):
        Layout.of(ArrayRecord({"w": array}))


def test_a_model_without_floats_is_refused():
    with pytest.raises(ConfigError, match="no float arrays"):
        Layout.of(record(n=np.array([1, 2])))


def test_a_packed_model_of_the_wrong_length_is_refused():
    layout = Layout.of(a_model())
    with pytest.raises(ConfigError, match="bytes where the layout says"):
        layout.unpack(b"123")
