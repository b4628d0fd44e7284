"""RUN: the state of a run, what it records, returns, saves and logs."""
