"""Picture: both panels, every finished arm, and the same numbers for the report."""

from __future__ import annotations

from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN
from fedpaq.experiments.models.picture import LOOKS, draw, panels, save_picture
from fedpaq.experiments.models.tasks import TASKS
from fedpaq.experiments.models.verdicts import Study
from small_study import write_study

TASK = TASKS["resnet-iid"]


def study_in(folder):
    finals = {FLOAT32: (60.0, 61.0, 62.0), PLAIN[5]: (60.0,) * 3, CODED[2]: (58.0,) * 3, PLAIN[1]: (None,) * 3}
    write_study(TASK, folder, finals, payloads={PLAIN[5]: 4.0})
    return Study.load(TASK, folder)


def test_every_arm_has_a_look_of_its_own():
    looks = [(look.colour, look.dash) for look in LOOKS.values()]
    assert set(LOOKS) == set(PLAIN + CODED) and len(set(looks)) == len(looks)


def test_what_is_drawn_is_what_was_run(tmp_path):
    left, right = draw(study_in(tmp_path)).axes
    names = [[line.get_label() for line in axis.lines] for axis in (left, right)]
    assert names[0] == ["float32", "Rotated 0.03 bits"]  # s = 1 diverged before its first point
    assert names[1] == ["float32", "Rotated 0.03 bits", "Rotated 0.03 bits, down 0.2"]
    assert left.lines[0].get_ydata().tolist() == [20.0, 61.0]
    assert left.lines[1].get_xdata().tolist() == [4.0 * 10 * k / 1e6 for k in (1, 150)]


def test_the_report_has_the_same_numbers(tmp_path):
    left, right = panels(study_in(tmp_path))
    assert left["curves"][0]["mean"] == [20.0, 61.0] and left["curves"][0]["high"] == [20.0, 62.0]
    assert [curve["label"] for curve in right["curves"]][-1] == "Rotated 0.03 bits, down 0.2"
    assert left["range"][0] < left["range"][1]


def test_files_are_written(tmp_path):
    study = study_in(tmp_path)
    assert [path.name for path in save_picture(study, tmp_path)] == ["models-resnet-iid.png", "models-resnet-iid.pdf"]
