"""Pre-training from records to a model directory."""
