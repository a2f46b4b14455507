"""Corpus reading: plain or compressed text files to documents and sentences, with counts of rejected text."""
