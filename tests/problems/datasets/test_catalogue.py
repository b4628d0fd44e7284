"""Catalogue: complete entries, constants that are those of the data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dataset_files import load_offline, shared_data
from fedpaq.errors import ConfigError
from fedpaq.problems.datasets.catalogue import DATASETS, spec
from fedpaq.problems.datasets.source import load_dataset, locate


def test_the_catalogue_lists_complete_entries():
    for name, dataset in DATASETS.items():
        assert dataset.name == name and name in dataset.folders  # where `fedpaq data get` puts it
        assert dataset.address.startswith("https://") and dataset.address.endswith("/")
        assert all(len(file.sha256) == 64 and file.num_bytes > 0 for file in dataset.files)
        assert len(dataset.mean) == len(dataset.deviation) == (dataset.image_shape + (1,))[2]


def test_unknown_dataset_names_suggest_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown dataset 'cifar-10'; known: .* \(did you mean 'cifar10'\?\)"):
        load_dataset("cifar-10")


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_standardisation_constants_are_those_of_the_data(name, tmp_path):
    if shared_data() is None or locate(spec(name), data_dir=shared_data(), cache_dir=tmp_path) is None:
        pytest.skip(f"needs {name} in the folder that FEDPAQ_DATA names")
    dataset = spec(name)
    images = load_offline(dataset, shared_data(), tmp_path).x_train[:2000]
    pixels = images.reshape(-1, len(dataset.mean)) / 255.0
    # Images differ in brightness with a deviation of about 0.15; a subset may be off by 5 standard errors.
    tolerance = 5 * 0.15 / math.sqrt(len(images)) + 1e-4
    np.testing.assert_allclose(pixels.mean(0), dataset.mean, atol=tolerance)
    np.testing.assert_allclose(pixels.std(0), dataset.deviation, atol=tolerance)
