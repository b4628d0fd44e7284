"""An app as people bring it: BatchNorm, Dropout, Adam, a learning-rate schedule, uneven clients."""
