"""Optimizers, learning rate schedules, and the guard that skips steps with NaN or infinity."""
