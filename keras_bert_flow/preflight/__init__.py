"""Checks that are made before any work: whatever would end a stage or a whole run with a message of its user's.

Here the rules are only called; each has one body, in the room that it belongs to. Nothing here writes a file or imports
a backend.
"""
