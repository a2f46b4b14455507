"""Optimizers, their schedules, and the guard that leaves out steps with NaN or infinity."""
