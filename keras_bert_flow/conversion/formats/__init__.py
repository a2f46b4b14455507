"""Model formats, one per module: detecting a model of the format, reading it into a `Checkpoint`, writing it."""
