"""All that names jax, tensorflow or torch: a function each, which means the same on all three.

Faster forms of what Keras has, and what Keras has no name for. Nothing here imports another room.
"""
