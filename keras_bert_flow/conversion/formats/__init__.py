"""Directories of models in each format, a file each: how one is known, read into a `Checkpoint`, and written."""
