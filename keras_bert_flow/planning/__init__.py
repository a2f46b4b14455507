"""Estimate the outputs and cost of a run from a sample of its inputs: `kbf run --plan`. Nothing here runs a stage."""
