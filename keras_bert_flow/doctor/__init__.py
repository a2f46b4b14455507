"""Examination of corpora, vocabularies and records: what they contain, compared with what their rules imply.

No file is changed.
"""
