"""Models of pre-training, one a file: an encoder with the heads that an objective trains, their losses and metrics."""
