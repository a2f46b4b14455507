"""Training: the loop and its state, optimizers, and the stages that use them."""
