"""Published folders: keys, manifests, locks, atomic publishing, verification, lineage and costs.

Everything is read from manifests, locks and file names. Nothing here makes a result.
"""
