"""Input pipeline: records or task tables to batches for `model.fit`.

The order is a pure function of (seed, epoch, index), so resuming is a slice. The module that shows records as text is
here, too. No models here.
"""
