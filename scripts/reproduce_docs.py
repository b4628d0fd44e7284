"""Publish a ``fedpaq reproduce`` folder: copy it to docs/figures/paper, draw the headline, fill in docs/reproduce.md.

python scripts/reproduce_docs.py reproduction   # copy the figures that are finished there, then draw and fill in
python scripts/reproduce_docs.py                # draw and fill in from what was copied before
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpaq.cost_model import CostModel
from fedpaq.experiments import FIGURES, PLOTS, Curve, CurveSettings, Figure, Output, PaperSetting, judge
from fedpaq.experiments.curve import ACCOUNTINGS, SEEDS, Curves, curve_settings
from fedpaq.experiments.judging import FAILS, HOLDS, NUM_LEVELS, TIED, UNDECIDED
from fedpaq.experiments.plot import LOOKS, STYLE, draw_band, loss_range, save_plots, seeds_of, set_loss_axis
from fedpaq.experiments.rates import LABELS
from fedpaq.experiments.rates import NAME as RATES

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PUBLISHED = DOCS / "reproduce.md", DOCS / "figures" / "paper"
MARKS = {HOLDS: "✓", FAILS: "✗", TIED: "=", UNDECIDED: "?"}
COUNTS = {"payload": "real payload", "elias": "Elias bound", "fixed-width": "fixed width"}
SCORED = {
    "payload": "real payload bytes",
    "elias": "QSGD's bound for its Elias code",
    "fixed-width": "fixed width, our reading of the paper",
}
EARLIER = "area"  # the tuning rule of curves that have not been run again, and of the sixth figure
HEADLINE = "fashion"  # the figure whose methods the first picture compares


def publish(folder: Path) -> None:
    """Copy the curves that are finished there, and draw and judge every figure from what is published then."""
    output = Output(folder)
    for figure, curves in output.finished() + output.finished_rates():
        (PUBLISHED / "curves" / figure.folder).mkdir(parents=True, exist_ok=True)
        shared = () if figure.beside else PLOTS[f"{RATES}-{figure.name}"].settings  # which the sixth figure needs
        for path in (PUBLISHED / "curves" / figure.folder).glob("*.json"):
            old = _settings(path)
            is_earlier = old.rule != curve_settings(figure)[0].rule
            is_kept = is_earlier and (figure.beside or (old.setting in shared and old.seeds == SEEDS))
            if old.setting in curves and not is_kept:
                path.unlink()
        for curve in curves.values():
            shutil.copy(output.path(figure, curve.settings), PUBLISHED / "curves" / figure.folder)
    for path in sorted([*folder.glob("rates*.png"), *folder.glob("rates-verdicts.json")]):
        shutil.copy(path, PUBLISHED)
    verdicts = []
    for figure in FIGURES.values():
        drawn = published_curves(figure)
        if drawn:
            verdicts += judge(figure, drawn)
            for accounting in ACCOUNTINGS:
                save_plots(figure, drawn, accounting, PUBLISHED)
    for path in PUBLISHED.glob("*.pdf"):  # no page shows a PDF
        path.unlink()
    text = json.dumps(verdicts, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (PUBLISHED / "verdicts.json").write_text(text, encoding="utf-8")


def sections() -> dict[str, str]:
    """Return every generated section of the page by name."""
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    before = json.loads((PUBLISHED / "verdicts-before.json").read_text(encoding="utf-8"))
    all_curves = {figure.name: published_curves(figure) for figure in FIGURES.values()}
    found = {"score": score(verdicts), "moved": moved(before, verdicts, all_curves)}
    for figure in FIGURES.values():
        curves = all_curves[figure.name]
        if set(curves) != set(figure.settings):
            continue
        about = [entry for entry in verdicts if entry["figure"] == figure.name]
        found[figure.name] = "\n\n".join(
            [
                *(f"![{figure.title}, {name}](figures/paper/{figure.name}-{key}.png)" for key, name in COUNTS.items()),
                verdict_table(about),
                "Time to each common level, from easy to hard, as a ratio; the verdict names the one that decided:",
                level_table(about),
                f"The curves (mean over {seeds_of(curves)}, times in mean gradient times):",
                curve_table(figure, curves),
            ]
        )
    plots = [(plot, published_curves(plot)) for plot in PLOTS.values()]
    finished = [(plot, curves) for plot, curves in plots if set(curves) == set(plot.settings)]
    return found | ({RATES: rates_section(finished)} if finished else {})


def moved(
    before: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], curves: Mapping[str, Curves]
) -> str:
    """Return one row per claim: its earlier verdict, the one of now, and which of the two changes moved it.

    The same five seeds with the new step sizes tell what tuning did; the other seeds did the rest.
    """
    earlier = {entry["figure"]: entry for entry in before}
    lines = [f"| figure | claim | {' | '.join(COUNTS.values())} | moved by |", "| --- " * (3 + len(COUNTS)) + "|"]
    for name, figure in FIGURES.items():
        if set(curves[name]) != set(figure.settings):
            continue
        few = {setting: curve.first(len(SEEDS)) for setting, curve in curves[name].items()}
        tuned = {entry["claim"]: entry["judged"] for entry in judge(figure, few)}
        for entry in verdicts:
            if entry["figure"] != name:
                continue
            old = earlier[name]["verdicts"][entry["claim"]]
            new = {count: entry["judged"][count]["verdict"] for count in COUNTS}
            cells = [_change(old[count], new[count]) for count in COUNTS]
            causes = _causes(old, {count: tuned[entry["claim"]][count]["verdict"] for count in COUNTS}, new)
            lines.append(f"| {name} | {entry['claim'].replace('-', ' ')} | {' | '.join(cells)} | {causes} |")
    return "\n".join(lines)


def _change(old: str, new: str) -> str:
    return f"{MARKS[new]} {new}" if old == new else f"{MARKS[old]} {old} → **{MARKS[new]} {new}**"


def _causes(old: Mapping[str, str], tuned: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Name the steps from the old verdicts over those of five seeds to the new ones at which one changed."""
    steps = [
        (old[count], *(UNDECIDED if each == TIED else each for each in (tuned[count], new[count])), new[count])
        for count in COUNTS
        if old[count] != new[count]
    ]
    causes = {
        "step sizes": any(few != before for before, few, _, _ in steps),
        "seeds": any(plain != few for _, few, plain, _ in steps),
        "called a tie": any(now == TIED for *_, now in steps),
    }
    return ", ".join(cause for cause, is_one in causes.items() if is_one)


def save_headline() -> None:
    """Draw the first picture of the README: training loss against uploaded bytes, four methods on one problem."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    figure, plot = FIGURES[HEADLINE], PLOTS[f"{RATES}-{HEADLINE}"]
    paper, beside = published_curves(figure), published_curves(plot)
    labels, rotated = plot.panels[0].curves, plot.panels[0].curves[LABELS[0]]
    shown = {
        "FedPAQ, Rotated": beside[rotated],
        "FedPAQ, LowPrecision": paper[labels["s = 1"]],
        "QSGD (τ = 1, r = 50)": paper[figure.panel("methods").curves["QSGD"]],
        "FedAvg": paper[labels["no quantization"]],
    }
    with matplotlib.rc_context({**STYLE, "font.size": 13}):
        canvas = Canvas(figsize=(7.4, 5), layout="constrained")
        axis: Any = canvas.subplots()
        for look, (label, curve) in zip(LOOKS, shown.items(), strict=False):
            megabytes = curve.bits("payload").mean(axis=0)[1:] / 8e6
            draw_band(axis, f"{label}: {size(mean_upload(curve))}", megabytes, curve.loss[:, 1:], look)
        low, high = (end * float(next(iter(shown.values())).loss[0, 0]) for end in loss_range(list(shown.values())))
        axis.set(xscale="log", yscale="log", xlabel="uploaded by all clients together (MB)", ylabel="training loss")
        set_loss_axis(axis, low, high)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.legend(loc="lower center", bbox_to_anchor=(0.46, 1.0), ncols=2, fontsize=12, columnspacing=1.2)
        canvas.savefig(PUBLISHED / "headline.png", dpi=150, metadata={"Software": None})


def size(count: float) -> str:
    """Return a number of bytes in words.

    >>> size(320), size(368_118)
    ('320 bytes', '368 kB')
    """
    return f"{count:,.0f} bytes" if count < 1e4 else f"{count / 1e3:,.0f} kB"


def rates_section(plots: Sequence[tuple[Figure, Curves]]) -> str:
    """Return the section of the sixth figure: picture, verdicts, and a table of each problem's curves."""
    verdicts = json.loads((PUBLISHED / "rates-verdicts.json").read_text(encoding="utf-8"))
    order = list(dict.fromkeys(entry["figure"] for entry in verdicts))
    plots = sorted(plots, key=lambda pair: order.index(pair[0].name))
    titles = {plot.name: plot.title for plot, _ in plots}
    lines = ["| problem | claim | criterion | verdict |", "| --- | --- | --- | --- |"]
    for entry in verdicts:
        cells = (titles[entry["figure"]], entry["sentence"], entry["criterion"], _cell(entry["judged"]["payload"]))
        lines.append(f"| {' | '.join(cells)} |")
    parts = ["![Training loss against uploaded bytes](figures/paper/rates.png)", "\n".join(lines)]
    for plot, curves in plots:
        parts += [f"{plot.title}, {plot.panels[0].fixed} (mean over five seeds):", rate_table(plot, curves)]
    return "\n\n".join(parts)


def rate_table(plot: Figure, curves: Curves) -> str:
    """Return one row per curve: what it sent and what it reached."""
    lines = ["| curve | bytes per upload | step size | loss after T |", "| --- | --- | --- | --- |"]
    for label, setting in plot.panels[0].curves.items():
        curve = curves[setting]
        loss = curve.loss[:, -1]
        lines.append(
            f"| {label} | {mean_upload(curve):,.0f} | {curve.step_size:g} | "
            f"{loss.mean():.4g} ± {loss.std(ddof=1):.2g} |"
        )
    return "\n".join(lines)


def mean_upload(curve: Curve) -> float:
    """Return the mean bytes of an upload."""
    setting = curve.settings.setting
    return float(curve.payload_bytes[:, -1].mean() / (setting.num_rounds * setting.clients_per_round))


def published_paths(figure: Figure) -> dict[PaperSetting, Path]:
    """Return where the curves are that were copied, whatever version made them.

    They are tuned by the figure's rule, or, as long as it has not been run again, all by the earlier one. Of those
    the sixth figure has the ones with the seeds it was fixed with, the paper's figures any that have more.
    """
    rule = curve_settings(figure)[0].rule
    found: dict[str, dict[PaperSetting, Path]] = defaultdict(dict)
    paths = [(path, _settings(path)) for path in (PUBLISHED / "curves" / figure.folder).glob("*.json")]
    for path, settings in sorted(paths, key=lambda pair: (len(pair[1].seeds), pair[0])):
        if not figure.beside or settings.seeds == SEEDS:
            found[settings.rule][settings.setting] = path
    chosen = found[rule] if set(figure.settings) <= set(found[rule]) else found[EARLIER]
    return {setting: chosen[setting] for setting in figure.settings if setting in chosen}


def _settings(path: Path) -> CurveSettings:
    return Curve.from_json(path.read_text(encoding="utf-8")).settings


def published_curves(figure: Figure) -> dict[PaperSetting, Curve]:
    """Return the curves that were copied, in the figure's order."""
    paths = published_paths(figure).items()
    return {setting: Curve.from_json(path.read_text(encoding="utf-8")) for setting, path in paths}


def filled(text: str, generated: dict[str, str]) -> str:
    """Return the page with each generated section between its markers; figures not run say so."""
    for name in ["score", "moved", *FIGURES, RATES]:
        content = generated.get(name, "Not run yet: `fedpaq reproduce " + name + "`.")
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text = re.sub(pattern, lambda m, new=content: f"{m[1]}\n{new}\n\n{m[2]}", text, flags=re.S)
    return text


def score(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Count the verdicts under each count of bits."""
    lines = [f"| uploads counted in | {' | '.join(MARKS)} |", "| --- " * (1 + len(MARKS)) + "|"]
    for accounting in ACCOUNTINGS:
        found = [entry["judged"][accounting]["verdict"] for entry in verdicts]
        lines.append(f"| {SCORED[accounting]} | " + " | ".join(str(found.count(verdict)) for verdict in MARKS) + " |")
    return "\n".join(lines)


def verdict_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per claim: sentence, criterion, and verdict and deciding ratio per count."""
    lines = [f"| sentence | criterion | {' | '.join(COUNTS.values())} |", "| --- " * (2 + len(COUNTS)) + "|"]
    for entry in verdicts:
        cells = [_cell(entry["judged"][accounting]) for accounting in COUNTS]
        sentence = f"“{entry['sentence']}” ({entry['where']})"
        lines.append(f"| {sentence} | {entry['criterion']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def level_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per pair of curves compared level by level, and count: the ratio at each level."""
    heads = [f"level {number}" for number in range(1, NUM_LEVELS + 1)]
    lines = [f"| ratio | count | {' | '.join(heads)} |", "| --- " * (2 + NUM_LEVELS) + "|"]
    for entry in verdicts:
        for count, name in COUNTS.items():
            by_pair: dict[str, list[str]] = {}
            for ratio in entry["judged"][count]["ratios"]:
                if "at" in ratio:
                    mark = HOLDS if ratio["low"] > 1 else FAILS if ratio["high"] < 1 else UNDECIDED
                    by_pair.setdefault(ratio["what"], []).append(f"{MARKS[mark]} {ratio['value']:.3g}")
            lines += [f"| {pair} | {name} | {' | '.join(cells)} |" for pair, cells in by_pair.items()]
    return "\n".join(lines)


def curve_table(figure: Figure, curves: Curves) -> str:
    """Return one row per curve: its step size, and what it reached at which cost."""
    cost_model = CostModel.from_ratio(figure.ratio)
    times = [f"time, {name}" for name in COUNTS.values()]
    lines = [
        f"| curve | seeds | step size | loss after T | bytes per upload | {' | '.join(times)} |",
        "| --- " * (5 + len(COUNTS)) + "|",
    ]
    for setting, curve in curves.items():
        spent = [f"{curve.axis('seconds', name, cost_model)[:, -1].mean():,.0f}" for name in COUNTS]
        reached = f"{curve.loss[:, -1].mean():.4g} ± {curve.loss[:, -1].std(ddof=1):.2g}"
        upload = f"{mean_upload(curve):,.0f}"
        cells = (setting.slug, str(curve.num_seeds), f"{curve.step_size:g}", reached, upload, *spent)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(judged: Mapping[str, Any], digits: int = 3) -> str:
    ratio = judged["decisive"]
    text = f"{MARKS[judged['verdict']]} **{judged['verdict']}**"
    if ratio is None:
        return text
    value, low, high = (f"{ratio[name]:.{digits}g}" for name in ("value", "low", "high"))
    what = f"{ratio['what']} to {ratio['at']}" if "at" in ratio else ratio["what"]
    return f"{text}<br>{what}: {value} [{low}, {high}]"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        publish(Path(sys.argv[1]))
    save_headline()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), sections()), encoding="utf-8")
