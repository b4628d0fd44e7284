"""Coverage-guided fuzzing of the dataset readers (needs the package ``atheris``, not a dependency).

    python -m tests.fuzz.read_dataset tests/fuzz/corpora/dataset -max_total_time=600

The first byte of an input chooses how the rest becomes a file: as it is, or packed the way the
format packs it (zip, gzip, tar), so that the fuzzer need not find a compressor's checksums. A
finding is anything but DatasetError, or arrays that are not what the dataset promises.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
KINDS = ("npz", "npz packed", "idx", "idx gzip", "cifar", "cifar gzip", "cifar tar")


def check(data: bytes) -> None:
    """Raise AssertionError (or whatever escapes) if a reader mistreats ``data``."""
    if not data:
        return
    kind, content = KINDS[data[0] % len(KINDS)], data[1:]
    folder = Path(FOLDER.name)
    if kind.startswith("npz"):
        _try("mnist", "npz", _write(folder / "mnist.npz", content if kind == "npz" else _zipped(content)))
    elif kind.startswith("idx"):
        _try("mnist", "idx", _idx_folder(folder / "mnist", content, kind == "idx gzip"))
    else:
        packed = {"cifar": content, "cifar gzip": gzip.compress(content, 1)}.get(kind) or _tarred(content)
        _try("cifar10", "cifar-binary", _write(folder / "cifar-10-binary.tar.gz", packed))


def _try(name: str, format: str, path: Path) -> None:
    import numpy as np

    from fedpaq.errors import DatasetError
    from fedpaq.problems.datasets.catalogue import spec
    from fedpaq.problems.datasets.source import Source, read

    dataset = spec(name)
    try:
        arrays = read(dataset, Source("data folder", format, path)).arrays
    except DatasetError:
        return
    for images, labels in ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test)):
        assert images.dtype == labels.dtype == np.uint8 and len(images) == len(labels) >= 1
        assert images.shape[1:] == dataset.image_shape and labels.max() < dataset.num_labels


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _zipped(content: bytes) -> bytes:
    """Return an archive whose four entries are the quarters of ``content``."""
    stream, size = io.BytesIO(), max(1, len(content) // 4)
    with zipfile.ZipFile(stream, "w") as archive:
        for at, key in enumerate(("x_train", "y_train", "x_test", "y_test")):
            archive.writestr(f"{key}.npy", content[at * size : (at + 1) * size])
    return stream.getvalue()


def _idx_folder(folder: Path, content: bytes, packed: bool) -> Path:
    from fedpaq.problems.datasets.catalogue import spec

    folder.mkdir(exist_ok=True)
    size = max(1, len(content) // 4)
    for at, file in enumerate(spec("mnist").files):
        part = content[at * size : (at + 1) * size]
        for old in (folder / file.name, folder / file.name.removesuffix(".gz")):
            old.unlink(missing_ok=True)
        _write(
            folder / (file.name if packed else file.name.removesuffix(".gz")),
            gzip.compress(part, 1) if packed else part,
        )
    return folder


def _tarred(content: bytes) -> bytes:
    """Return a .tar.gz with the expected names, members that lie about what they are among them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for at, byte in enumerate(content[:6]):
            name = "test_batch.bin" if at == 5 else f"data_batch_{at + 1}.bin"
            member = tarfile.TarInfo(f"{'../' if byte & 1 else ''}cifar-10-batches-bin/{name}")
            member.type = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE)[byte >> 1 & 3]
            member.linkname = "../../outside"
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def main() -> None:
    """Fuzz until told to stop."""
    import atheris
    from tests.fuzz.cpu_time import within_a_second

    with atheris.instrument_imports(include=["fedpaq.problems", "zipfile", "tarfile"]):
        import fedpaq.problems.datasets  # noqa: F401
    check(b"{}")  # what is imported or compiled at first use is no hang
    atheris.Setup(sys.argv, within_a_second(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
