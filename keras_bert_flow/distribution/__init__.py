"""Distributed training: shard batches over devices and processes, and sum the gradients.

One file per backend, loaded only if that backend is in use.
"""
