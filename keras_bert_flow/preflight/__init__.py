"""Checks before any work: every user error that would end a stage or a whole run.

The rules are only called here; each is defined once, in the package that it belongs to. Nothing here writes a file or
imports a backend.
"""
