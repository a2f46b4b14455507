"""Export to serving formats: ONNX, SavedModel and LiteRT, one per module; reloaded and compared before publishing.

A format names its runtime, and the packages that it needs on each backend. Only the commands import this package.
"""
