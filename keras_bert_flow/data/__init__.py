"""Input pipeline: records or task tables to batches for `model.fit`.

Order is a pure function of (seed, epoch, index), so resuming is a slice. Records are shown as text here, too.
No models here.
"""
