"""Lineage of stage results on this disk: which exist, which were made from which, and which are no longer needed.

Everything here is read from manifests, locks and file names. Nothing here makes a result.
"""
