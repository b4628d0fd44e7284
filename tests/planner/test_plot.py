"""Pictures of plans, and the front of time against upload."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import CostModel
from fedpaq.planner import RoundSetting, SearchSpace, plan
from fedpaq.planner.plot import draw_front, draw_map, pareto_front, save_plot, time_map
from fedpaq.quantizers import Identity, LowPrecision
from small_plans import COST, setting_of, space_of

QUICK = settings(max_examples=50, deadline=None)


def test_a_picture_is_drawn(problem, tmp_path):
    space = space_of((1, 4), (4,), (1, None), (0.5, 1.0))
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=space, compare=False)
    times = time_map(found, space)
    assert set(times) == {setting_of(tau, 4, levels) for tau in (1, 4) for levels in (1, 0)}
    save_plot(found, times, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_rows_of_a_map_are_named_by_quantizer_and_the_axis_of_a_front_by_its_unit(problem):
    from matplotlib.figure import Figure

    quantizers = [LowPrecision(2, bucket_size=4), Identity()]
    space = SearchSpace(local_steps=(1, 4), clients_per_round=(4,), quantizers=quantizers, step_sizes=(0.5, 1.0))
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=space, compare=False)
    times = dict.fromkeys([RoundSetting(tau, 4, q) for tau in (1, 4) for q in quantizers], found.pick.seconds)
    panel = Figure().subplots()
    draw_map(panel, found, times)
    assert [label.get_text() for label in panel.get_yticklabels()] == ["low-precision:2,bucket_size=4", "none"]
    assert panel.get_ylabel() == "quantizer"
    for cost_model, unit in ((CostModel.from_ratio(9), "gradient times"), (CostModel(bandwidth=9.0), "seconds")):
        panel = Figure().subplots()
        draw_front(panel, replace(found, task=replace(found.task, cost_model=cost_model)))
        assert panel.get_xlabel() == f"{unit} to target"


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=20))
def test_the_front_holds_exactly_the_unbeaten_points(points):
    front = pareto_front(points)
    for point in points:
        beaten = any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in points)
        assert (point in front) != beaten


@QUICK
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_a_front_of_a_front_is_itself_and_falls(points):
    front = pareto_front(points)
    assert pareto_front(front) == front and set(front) <= set(points)
    assert [x for x, _ in front] == sorted({x for x, _ in front})
    assert [y for _, y in front] == sorted({y for _, y in front}, reverse=True)
