"""Models: a study of networks that people train, beside the paper's figures. ``fedpaq reproduce models``.

tasks     ResNet-18 on CIFAR-10, dealt evenly and unevenly, and a transformer that predicts bytes
arms      what each is trained with: float32, levels, ``Rotated`` at four rates, with and without coded downloads
trial     one tuning of a step size, or one run
schedule  every trial that is missing, several at a time
verdicts  what the runs show, against float32
picture   test accuracy, or bits per byte, against bytes sent
"""

from fedpaq.experiments.models.picture import panels, save_picture
from fedpaq.experiments.models.schedule import run_study, work
from fedpaq.experiments.models.tasks import TASKS, Task
from fedpaq.experiments.models.verdicts import Study, judge_study

__all__ = ["TASKS", "Study", "Task", "judge_study", "panels", "run_study", "save_picture", "work"]
