"""Catalogue: what each dataset is. Shapes, file names, checksums, addresses, licence.

Pure data: nothing here touches a disk or a network.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedpaq.arrays import UInt8
from fedpaq.errors import DatasetError, unknown_name


class Arrays(NamedTuple):
    """Images and labels of the training and test parts."""

    x_train: UInt8  # (N, ...)
    y_train: UInt8  # (N,)
    x_test: UInt8  # (M, ...)
    y_test: UInt8  # (M,)


@dataclass(frozen=True)
class OfficialFile:
    """One file as its authors publish it."""

    name: str
    sha256: str
    num_bytes: int  # for progress bars and to stop a download that does not end


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Everything known about a dataset before any of it is read."""

    name: str
    image_shape: tuple[int, ...]
    num_labels: int
    num_train: int  # of the full dataset; a file may hold fewer
    num_test: int
    mean: tuple[float, ...]  # per channel, of pixels / 255 over the full training part
    deviation: tuple[float, ...]
    npz_names: tuple[str, ...]  # preferred first
    format: str  # of the official files: a key of source.FORMATS
    files: tuple[OfficialFile, ...]
    # Where inside a data folder the official files are looked for. MNIST and Fashion-MNIST name their
    # files alike, so only a folder's name tells them apart.
    folders: tuple[str, ...]
    address: str  # each file is at address + its name
    licence: str
    system_folder: str | None = None  # where a Linux distribution installs the official files

    @property
    def num_bytes(self) -> int:
        """Bytes to download."""
        return sum(file.num_bytes for file in self.files)

    def advice(self) -> str:
        """Say what to fetch and where to put it."""
        names = ", ".join(file.name for file in self.files)
        return (
            f"run `fedpaq data get {self.name}`, or fetch {names} from {self.address} and put them in "
            f"DIR/{self.name} (or {self.npz_names[0]} with uint8 arrays {' '.join(Arrays._fields)} in DIR), "
            "where DIR is the folder that --data-dir, data_dir= or FEDPAQ_DATA names"
        )

    def damaged(self, path: Path, what: str) -> DatasetError:
        """Build the error for a file that is there but cannot be used."""
        return DatasetError(f"file={str(path)!r} {what}; remove it, then {self.advice()}")


def _mnist_like(name: str, *published: tuple[str, int], **others: Any) -> DatasetSpec:
    """Describe a dataset in the form of MNIST, given (sha256, bytes) of its files in the usual order."""
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple(OfficialFile(f"{kind}-ubyte.gz", *each) for kind, each in zip(kinds, published, strict=True))
    sizes: dict[str, Any] = {"num_labels": 10, "num_train": 60_000, "num_test": 10_000}
    stem = name.replace("-", "_")
    npz_names = (f"{stem}.npz", f"{stem}_10k.npz")
    return DatasetSpec(
        name=name, image_shape=(28, 28), **sizes, npz_names=npz_names, format="idx", files=files, **others
    )


def _cifar(num_labels: int, sha256: str, num_bytes: int, **others: Any) -> DatasetSpec:
    """Describe CIFAR-10 or CIFAR-100, one archive each."""
    name = f"cifar{num_labels}"
    return DatasetSpec(
        name=name,
        image_shape=(32, 32, 3),
        num_labels=num_labels,
        num_train=50_000,
        num_test=10_000,
        npz_names=(f"{name}.npz", f"{name}_10k.npz"),
        format="cifar-binary",
        files=(OfficialFile(f"cifar-{num_labels}-binary.tar.gz", sha256, num_bytes),),
        folders=(name, ""),
        address="https://www.cs.toronto.edu/~kriz/",
        licence="none stated",
        **others,
    )


_DESCRIBED = (
    _mnist_like(
        "mnist",
        ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        mean=(0.1307,),
        deviation=(0.3081,),
        folders=("mnist", "MNIST/raw"),
        # The authors' page no longer serves the files; this is the mirror PyTorch uses.
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        licence="CC BY-SA 3.0",
    ),
    _mnist_like(
        "fashion-mnist",
        ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        mean=(0.2860,),
        deviation=(0.3530,),
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
        address="https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        licence="MIT",
        system_folder="/usr/share/datasets/fashion-mnist",
    ),
    _cifar(
        10,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
        mean=(0.4914, 0.4822, 0.4465),
        deviation=(0.2470, 0.2435, 0.2616),
    ),
    _cifar(
        100,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        168_513_733,
        mean=(0.5071, 0.4865, 0.4409),
        deviation=(0.2673, 0.2564, 0.2762),
    ),
)
DATASETS = {dataset.name: dataset for dataset in _DESCRIBED}


def spec(name: str) -> DatasetSpec:
    """Return the dataset called ``name``.

    >>> spec("cifar10").image_shape
    (32, 32, 3)
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name]
