"""Captured: one client after another, any module, its steps without the overhead of Python. For large modules.

A lane holds one client: its params as one flat vector, and a copy of the module whose parameters are views of it.
On a GPU a lane captures one local step as a CUDA graph and replays it for every step of every client. On a CPU
there is a lane for every core, each with one thread: a core that has a client to itself waits for no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedpaq.clients.sequential import private_randomness
from fedpaq.clients.steps import Optimizer, autocast
from fedpaq.clients.work import LocalWork
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem

WARM_UP = 3  # steps of a shape before its capture: libraries choose kernels and allocate workspaces
MOST_SHAPES = 8  # graphs of a lane; with full batches every client may have a size of its own
SHARE = 0.25  # of the free memory of a GPU, for more lanes
MOST_LANES = 8  # of a CPU: beyond, threads wait for Python
GPU_LANES, ONE_LANE = 8, 2**25  # of a GPU, which one small client does not fill; params from which one does
CLOSE = 1e-2  # relative difference of two ways to one gradient; a wrong way is far off


@dataclass(frozen=True)
class Captured:
    """Takes any module that can be copied.

    ``lanes``: clients side by side; ``channels_last``: how convolutions keep their numbers. Default: by device.
    """

    lanes: int | None = None
    channels_last: bool | None = None
    name: str = "captured"
    _built: dict[Any, list[Lane]] = field(default_factory=dict, repr=False, compare=False)

    def local_updates(self, problem: Problem, work: LocalWork) -> Tensor:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        device = problem.inputs.device
        received, _, step_sizes, samples = work.tensors(device)
        updates = torch.empty(len(work), problem.dimension, device=device, dtype=torch.float32)
        lanes = self._lanes(problem, work)

        def play(job: int, lane: Lane) -> None:
            run = int(work.run_of[job])
            with private_randomness(problem, work, job), lane.ordered():
                lane.play(received[run], step_sizes[run], samples[job], out=updates[job])

        def play_all(number: int) -> None:
            for job in range(number, len(work), len(lanes)):
                play(job, lanes[number])

        with side_by_side(device, lanes):
            if device.type == "cpu" and len(lanes) > 1:
                with ThreadPoolExecutor(len(lanes), initializer=torch.set_num_threads, initargs=(1,)) as pool:
                    list(pool.map(play_all, range(len(lanes))))
            else:
                for job in range(len(work)):
                    play(job, lanes[job % len(lanes)])
        return updates

    def _lanes(self, problem: Problem, work: LocalWork) -> list[Lane]:
        """Return the lanes for this work, kept from round to round; each has the same number of clients, about."""
        key = (problem, work.optimizer, work.precision)
        built = self._built.setdefault(key, [])
        if not built and (reason := reason_not_copied(problem)) is not None:
            raise ConfigError(f"executor='captured' cannot copy this module ({reason}); choose 'sequential'")
        most = min(self._most_lanes(problem, built), len(work))
        wanted = -(-len(work) // -(-len(work) // most))
        while len(built) < wanted:
            built.append(Lane(problem, work, self.channels_last))
        return built[:wanted]

    def _most_lanes(self, problem: Problem, built: list[Lane]) -> int:
        if problem.draws_at_random:
            return 1  # torch has one generator, and every client its own stream
        if not problem.inputs.is_cuda:
            return self.lanes or min(torch.get_num_threads(), MOST_LANES)
        if not built or built[0].taken is None:
            return 1  # the first round shows what memory a lane takes
        fitting = 1 + int(SHARE * torch.cuda.mem_get_info(problem.inputs.device)[0] // max(built[0].taken, 1))
        return min(self.lanes or (GPU_LANES if problem.dimension < ONE_LANE else 1), max(fitting, len(built)))


class Lane:
    """One client at a time."""

    def __init__(self, problem: Problem, like: LocalWork, channels_last: bool | None = None) -> None:
        device = problem.inputs.device
        self._problem, self._like, self._device = problem, like, device
        self._params, self._gradient = (
            torch.zeros(problem.dimension, device=device, dtype=torch.float32) for _ in range(2)
        )
        last = prefers_last_channels(problem) if channels_last is None else channels_last
        self._views, self._slots = (
            {key: last_channels(view) if last else view for key, view in problem.unflatten(flat).items()}
            for flat in (self._params, self._gradient)
        )
        self._module = problem.replica(self._views)
        named = dict(self._module.named_parameters())
        self._leaves = [named[key] for key in self._views]
        self._constants = Constants(self._module, problem.changing)
        self._optimizer = Optimizer(like.optimizer, self._params)
        self._step_size = torch.zeros((), device=device, dtype=torch.float32)
        self._samples: dict[int, Tensor] = {}  # by batch size
        self._steps: dict[int, int] = {}  # taken of each batch size
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.taken: int | None = None  # bytes of the GPU, once a step has been captured

    def play(self, received: Tensor, step_size: Tensor, samples: Tensor, out: Tensor) -> None:
        """Write the update of a client that sees samples (tau, B) to ``out`` (p,)."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._views.values()), list(self._problem.unflatten(received).values()))
            self._step_size.copy_(step_size)
            self._optimizer.reset()
        for chosen in samples:
            self._step(chosen)
        with torch.no_grad():
            torch._foreach_copy_(list(self._problem.unflatten(out).values()), list(self._views.values()))
            out.sub_(received)

    def ordered(self) -> Any:
        """Queue what is inside on this lane's stream of the GPU."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def fork(self) -> None:
        """Start after all that the GPU has been told so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """Let what the GPU is told from now on wait for this lane."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _step(self, samples: Tensor) -> None:
        """Take one local step, by the graph of this batch size where there is one."""
        size = len(samples)
        fixed = self._samples.setdefault(size, torch.empty_like(samples))
        fixed.copy_(samples)
        graph = self._graphs.get(size)
        if graph is None and self._is_due(size):
            graph = self._graphs[size] = self._capture(fixed)
        if graph is not None:
            graph.replay()  # type: ignore[no-untyped-call]
        else:
            self._steps[size] = self._steps.get(size, 0) + 1
            self._descend(fixed)

    def _is_due(self, size: int) -> bool:
        warm = self._steps.get(size, 0) >= WARM_UP
        return self._stream is not None and warm and size not in self._graphs and len(self._graphs) < MOST_SHAPES

    def _capture(self, samples: Tensor) -> torch.cuda.CUDAGraph | None:
        """Return the graph of one step, or None for a module that cannot be captured."""
        graph, free = torch.cuda.CUDAGraph(), torch.cuda.mem_get_info(self._device)[0]
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._descend(samples)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        self.taken = free - torch.cuda.mem_get_info(self._device)[0] + 16 * len(self._params)
        return graph

    def _descend(self, samples: Tensor) -> None:
        """Change the params by one step."""
        problem = self._problem
        self._constants.restore()
        inputs, targets = problem.inputs.index_select(0, samples), problem.targets.index_select(0, samples)
        with autocast(self._like, self._device), problem.quiet():
            value = problem.loss(self._module(inputs), targets)
        gradients = torch.autograd.grad(value, self._leaves, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(list(self._slots.values()), list(gradients))
            if problem.regularization:
                self._gradient.add_(self._params, alpha=problem.regularization)
            self._optimizer.step(self._params, self._gradient, self._step_size)


class Constants:
    """A module's buffers, and what is ``changing`` of its frozen parameters: as they were before the next step."""

    def __init__(self, module: nn.Module, changing: Collection[str] = ()) -> None:
        held: dict[int, Constant] = {}
        for prefix, owner in module.named_modules():
            frozen = [name for name in owner._parameters if f"{prefix}.{name}".lstrip(".") in changing]
            places: list[tuple[dict[str, Any], str]] = [(owner._buffers, name) for name in owner._buffers]
            for place, name in places + [(owner._parameters, name) for name in frozen]:
                if place[name] is not None:
                    held.setdefault(id(place[name]), Constant(place[name])).places.append((place, name))
        self._held = list(held.values())

    def restore(self) -> None:
        """Put back what was changed in place or replaced.

        Running means of BatchNorm change without a new version: in training nothing reads them.
        """
        for constant in self._held:
            constant.restore()


class Constant:
    """A tensor that the module has in one place or in several."""

    def __init__(self, value: Tensor) -> None:
        self.places: list[tuple[dict[str, Any], str]] = []
        self._original, self._value, self._version = value.detach().clone(), value, value._version

    def restore(self) -> None:
        """Put a fresh copy in all places if this one was changed or replaced in any."""
        if self._value._version == self._version and all(place[name] is self._value for place, name in self.places):
            return
        fresh = self._original.clone()
        if isinstance(self._value, nn.Parameter):
            fresh = nn.Parameter(fresh, requires_grad=False)
        self._value, self._version = fresh, fresh._version
        for place, name in self.places:
            place[name] = fresh


@contextmanager
def side_by_side(device: torch.device, lanes: Sequence[Lane]) -> Iterator[None]:
    """Let lanes run beside each other, and the caller after all of them; a CPU's threads are put back."""
    threads = torch.get_num_threads()
    for lane in lanes:
        lane.fork()
    try:
        yield
    finally:
        for lane in lanes:
            lane.join()
        if device.type == "cpu" and len(lanes) > 1:
            torch.set_num_threads(threads)  # of this thread, and of libraries that have one number for all


def last_channels(view: Tensor) -> Tensor:
    """Return a view of the same numbers as a convolution's weights (out, in, h, w) with ``in`` innermost."""
    if view.ndim != 4:
        return view
    outputs, inputs, height, width = view.shape
    return view.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def prefers_last_channels(problem: Problem) -> bool:
    """Tell whether convolutions are faster with channels innermost: on CPUs. On an H200 nothing was gained."""
    return not problem.inputs.is_cuda and any(isinstance(each, nn.Conv2d) for each in problem.model.modules())


def reason_not_copied(problem: Problem) -> str | None:
    """Return why a copy of the module cannot stand for it, or None if it can: tried on two samples.

    A hook or a closure may hold on to the module it came from; the gradient tells.
    """
    x, y = problem.inputs[:2], problem.targets[:2]
    parts = problem.unflatten(torch.from_numpy(problem.initial_params).to(x.device))
    gpus = [x.device] if x.is_cuda else []
    found = []
    try:
        module = problem.replica(parts)
        named = dict(module.named_parameters())
        leaves: dict[str, Tensor] = {key: named[key] for key in parts}
        for call in (module, lambda inputs: problem.call(leaves, inputs)):
            with torch.random.fork_rng(devices=gpus), problem.quiet():
                torch.manual_seed(0)
                value = problem.loss(call(x), y)
            gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
            found.append(torch.cat([value.detach().reshape(1), *(each.reshape(-1) for each in gradients)]))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    copied, own = found
    return None if float((copied - own).norm()) <= CLOSE * float(own.norm()) else "its gradient differs"
