"""HARDWARE: devices of this machine, and the ranks of several processes."""
