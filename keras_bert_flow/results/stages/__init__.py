"""The stages of a run, one per module: the inputs, the settings in the key, the revision and the command of each.

Used by commands, flows and reports, without Keras and without Prefect.
"""
