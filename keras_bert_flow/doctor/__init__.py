"""Examination of corpora, vocabularies and records: what they hold, against what their rules lead one to expect.

Nothing here changes a file.
"""
