"""Paths, atomic files, inputs that may change while they are read, and limits on untrusted JSON and YAML.

Nothing here knows what a file holds for this project.
"""
