"""State of a run on disk: checkpoints, the log, and the identity of the run."""
