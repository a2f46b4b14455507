"""Backend-specific code: everything that names jax, tensorflow or torch, behind functions that agree on all three.

Faster versions of Keras operations, and operations that Keras lacks. Nothing here imports another subpackage.
"""
