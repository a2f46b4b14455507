"""Settings of a run: a frozen pydantic model for each section, and how they are read from YAML.

No file here computes anything, and none imports another room but for names and messages.
"""
