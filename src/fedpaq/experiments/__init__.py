"""THE PAPER'S FIGURES: as data, run, judged, plotted, reported."""
