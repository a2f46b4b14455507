"""Serving formats: ONNX, SavedModel and LiteRT, a file each, reloaded and compared before they are published.

A format names its runtime, and the packages that it needs on each backend. Nobody but the commands imports this room.
"""
