"""Answer requests over HTTP with a model directory or an exported model."""
