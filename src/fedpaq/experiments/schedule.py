"""Schedule: the curves of several figures made side by side, so that no core waits for another.

Curves do not depend on each other, and a curve on one core wastes nothing, where one on all cores leaves them idle
while it does what only one can do. So there is a process for each core, and a curve is the same to the bit. The
parent hands out the curves, figure by figure, the longest first, and seeds to add as soon as they are asked
for; it alone writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue

from fedpaq.errors import DatasetError
from fedpaq.experiments import runner
from fedpaq.experiments.curve import Curve, curve_settings
from fedpaq.experiments.figures import Figure, PaperSetting
from fedpaq.experiments.output import Output
from fedpaq.experiments.runner import Progress
from fedpaq.experiments.worker import Worker
from fedpaq.kernels.threads import cores

MOST_PROCESSES = 4  # each holds a copy of the data: about a gigabyte


def most_processes(device: str) -> int:
    """Return how many processes may make curves: one for each core, up to four; a GPU has one."""
    return min(cores(), MOST_PROCESSES) if device == "cpu" else 1


def ahead(
    figures: Sequence[Figure],
    output: Output,
    progress: Callable[[Figure], Progress],
    *,
    data_dir: Path | None = None,
    processes: int = 1,
) -> Generator[Figure, None, None]:
    """Yield each figure once its curves are in the output folder, made by several processes.

    One process makes none: figures come as they are, for ``run_figure`` to do the work. So does a figure whose data is
    missing, for it to say so. Close the iterator, or exhaust it: that ends the processes.
    """
    if processes < 2:
        yield from figures
        return
    begun = [_Begun(figure, output, progress(figure)) for figure in figures]
    missing = _without_data(begun, data_dir)
    yield from missing
    begun = [each for each in begun if each.figure not in missing]
    if any(each.waiting for each in begun):
        yield from _made(begun, data_dir, processes)
    else:
        yield from (each.figure for each in begun)


class _Begun:
    """A figure: the curves it has, and those it waits for."""

    def __init__(self, figure: Figure, output: Output, progress: Progress) -> None:
        self.figure, self._output, self._progress = figure, output, progress
        self._settings = {settings.setting: settings for settings in curve_settings(figure, output.device)}
        found = {setting: output.load(figure, settings) for setting, settings in self._settings.items()}
        self._curves = {setting: curve for setting, curve in found.items() if curve is not None}
        self._running = 0
        self.waiting = sorted(self._settings.keys() - self._curves.keys(), key=self._rank)
        self._ask_for_seeds()

    def _rank(self, setting: PaperSetting) -> tuple[int, int, int]:
        """Order by how long it takes: by gradients, then by rounds, each of which is evaluated."""
        order = list(self._settings).index(setting)
        return -runner.expected_gradients(self._settings[setting]), setting.local_steps, order

    @property
    def is_finished(self) -> bool:
        return not self.waiting and not self._running

    def make_next(self, idle: SimpleQueue[Worker], data_dir: Path | None) -> Callable[[], Curve]:
        """Return how the next curve is made by the first process that is idle, in a thread that waits for it."""
        setting = self.waiting.pop(0)
        self._running += 1
        settings, curve = self._settings[setting], self._curves.get(setting)

        def advance(gradients: int) -> None:
            self._progress(setting, gradients)

        def make() -> Curve:
            worker = idle.get()
            try:
                return worker.make(settings, curve, data_dir, advance)
            finally:
                idle.put(worker)

        return make

    def take(self, curve: Curve) -> None:
        """Keep a curve that was made."""
        self._output.save(self.figure, curve)
        self._curves[curve.settings.setting] = curve
        self._running -= 1
        self._ask_for_seeds()

    def _ask_for_seeds(self) -> None:
        if self.is_finished:
            self.waiting = runner.to_extend(self.figure, self._curves)


def _without_data(begun: list[_Begun], data_dir: Path | None) -> list[Figure]:
    """Return the figures whose data is needed and cannot be found or fetched; here, so that it is fetched once."""
    known: dict[str, bool] = {}
    for each in begun:
        if each.waiting and each.figure.problem not in known:
            try:
                runner.load_problem(each.figure, data_dir)
                known[each.figure.problem] = True
            except DatasetError:
                known[each.figure.problem] = False
    return [each.figure for each in begun if each.waiting and not known[each.figure.problem]]


def _made(begun: list[_Begun], data_dir: Path | None, processes: int) -> Iterator[Figure]:
    """Yield the figures as they get finished, by processes that end with the iterator."""
    workers = [Worker(max(1, cores() // processes)) for _ in range(processes)]
    idle, running = SimpleQueue[Worker](), dict[Future[Curve], _Begun]()
    threads = ThreadPoolExecutor(processes, "fedpaq-worker")  # one waits for each process
    try:
        for worker in workers:
            idle.put(worker)
        while begun:
            # One curve more than are made for each process: none waits while the caller draws a figure.
            while len(running) < 2 * processes and (asking := next((one for one in begun if one.waiting), None)):
                running[threads.submit(asking.make_next(idle, data_dir))] = asking
            for finished in [one for one in begun if one.is_finished]:
                begun.remove(finished)
                yield finished.figure
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.pop(future).take(future.result())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.end()
        threads.shutdown()
