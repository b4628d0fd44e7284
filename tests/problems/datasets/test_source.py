"""Source: places searched in order, what is missing or damaged says what to do."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset_files import TRAIN, arrays_for, cifar_archive, cifar_members, load_offline, small, write_idx
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets.source import Source, locate, read


def test_places_are_searched_in_the_documented_order(tmp_path):
    data, system, cache = tmp_path / "data", tmp_path / "fashion-mnist", tmp_path / "cache"
    dataset = dataclasses.replace(small("fashion-mnist"), system_folder=str(system))
    arrays = arrays_for(dataset)

    def place() -> tuple[str, str]:
        found = locate(dataset, data_dir=data, cache_dir=cache)
        return ("", "") if found is None else (found.place, found.format)

    data.mkdir()
    assert place() == ("", "")
    write_idx(dataset, arrays, cache / "fashion-mnist")
    assert place() == ("cache", "idx")
    write_idx(dataset, arrays, system)
    assert place() == ("system", "idx")
    write_idx(dataset, arrays, data / "fashion-mnist")
    assert place() == ("data folder", "idx")
    np.savez(data / "fashion_mnist_10k.npz", **arrays._asdict())
    assert place() == ("data folder", "npz")
    np.savez(data / "fashion_mnist.npz", **arrays._asdict())
    assert locate(dataset, data_dir=data, cache_dir=cache).path.name == "fashion_mnist.npz"


def test_a_dataset_found_nowhere_says_what_to_fetch_and_where_to_put_it(tmp_path):
    with pytest.raises(DatasetError) as caught:
        load_offline(small("cifar10"), tmp_path, tmp_path / "cache")
    message = str(caught.value)
    assert message.startswith("dataset='cifar10' was not found")
    for part in ("cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/", "DIR/cifar10", "FEDPAQ_DATA"):
        assert part in message


def test_a_mistyped_folder_is_not_skipped(tmp_path):
    with pytest.raises(DatasetError, match=r"data_dir='.*nowhere' is not a folder; choose one that exists"):
        load_offline(small("mnist"), tmp_path / "nowhere", tmp_path)


def test_labels_outside_the_range_are_refused(tmp_path):
    dataset = small("mnist")
    arrays = arrays_for(dataset)
    arrays.y_test[3] = 10
    np.savez(tmp_path / "mnist.npz", **arrays._asdict())
    with pytest.raises(DatasetError, match=r"has test label 10, outside mnist's 0\.\.9"):
        load_offline(dataset, tmp_path, tmp_path / "cache")


def test_a_file_without_permission_is_a_dataset_error(tmp_path):
    source = Source("data folder", "npz", tmp_path)  # a folder where a file should be
    with pytest.raises(DatasetError, match="cannot be read"):
        read(small("mnist"), source)


def valid_files() -> dict[str, bytes]:
    mnist, cifar = small("mnist"), small("cifar100")
    archive = io.BytesIO()
    np.savez_compressed(archive, **arrays_for(mnist)._asdict())
    members = cifar_members(cifar, arrays_for(cifar))
    return {"mnist.npz": archive.getvalue(), "cifar-100-binary.tar.gz": cifar_archive(cifar, members)}


VALID = valid_files()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(VALID)), data=st.data())
def test_damaged_bytes_are_read_right_or_refused(name, data, tmp_path):
    content = bytearray(VALID[name])
    # Archives keep their directories at either end: damage those more often than pixels.
    near = st.integers(0, 400) | st.integers(len(content) - 700, len(content) - 1) | st.integers(0, len(content) - 1)
    for position in data.draw(st.lists(near, min_size=1, max_size=4)):
        content[position] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del content[data.draw(near) :]
    (tmp_path / name).write_bytes(content)
    dataset = small("mnist" if name == "mnist.npz" else "cifar100")
    try:
        arrays = load_offline(dataset, tmp_path, tmp_path / "cache")
    except DatasetError:
        return
    assert arrays.x_train.shape == (TRAIN, *dataset.image_shape)
