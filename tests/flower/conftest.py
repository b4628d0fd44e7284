"""The apps in here are run by Flower, not imported by pytest."""

collect_ignore = ["apps"]
