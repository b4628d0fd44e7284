"""Graphs: CUDA graphs of a round's local work. At small r a GPU waits for launches, not for memory.

The first round of a shape runs as it is; the second is captured, and later ones replay it: one launch
instead of hundreds. On a CPU, and for parts large enough to keep the GPU busy, nothing is captured.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CAPTURE_BYTES = 2**28  # updates of a part beyond which launches no longer matter


class Captured:
    """A function of tensors as one CUDA graph: fixed inputs to copy into, a fixed output to copy from."""

    def __init__(self, function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        self._inputs = [tensor.clone() for tensor in tensors]
        stream = torch.cuda.Stream(tensors[0].device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*self._inputs)  # libraries allocate their workspace before the capture
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = function(*self._inputs)

    def replay(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Run the graph on new inputs."""
        for fixed, tensor in zip(self._inputs, tensors, strict=True):
            fixed.copy_(tensor)
        self._graph.replay()
        return self._output.clone()


class Graphs:
    """The graphs of one executor, by key and shapes. Pass one executor to many runs to share them."""

    def __init__(self, *, capture: bool = True) -> None:
        self._capture = capture
        self._seen: dict[Any, Captured | None] = {}  # None: seen once, not yet captured

    def run(self, key: tuple[Any, ...], function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(received, run_of, step_sizes, samples), replayed where a graph can serve.

        The ``key`` names all else that the function depends on, such as the problem.
        """
        received, run_of = tensors[:2]
        size = 4 * len(run_of) * received.shape[1]
        if not self._capture or received.device.type != "cuda" or size > CAPTURE_BYTES:
            return function(*tensors)
        key = (*key, *(tuple(tensor.shape) for tensor in tensors))
        if key not in self._seen:
            self._seen[key] = None
            return function(*tensors)
        captured = self._seen[key] or self._captured(key, function, tensors)
        return function(*tensors) if captured is None else captured.replay(tensors)

    def _captured(self, key: Any, function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Captured | None:
        try:
            self._seen[key] = Captured(function, tensors)
        except RuntimeError as error:
            self._capture = False
            warnings.warn(
                f"this module's local steps cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); "
                "running them launch by launch, which is slower at small r",
                stacklevel=2,
            )
        return self._seen[key]
