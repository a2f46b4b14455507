"""The store of stage results on this disk: what is there, what was made from what, and what nothing needs any more.

Everything here is read from manifests, locks and names of files. Nothing here makes a result.
"""
