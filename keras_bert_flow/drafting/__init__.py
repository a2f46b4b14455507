"""A first configuration for somebody's own text and table: what they look like, and what fits in a budget of time.

What is guessed is said beside the setting. Nothing here trains, and nothing is overwritten.
"""
