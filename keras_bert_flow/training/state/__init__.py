"""What a run keeps on disk: checkpoints, its log, what it was begun with."""
