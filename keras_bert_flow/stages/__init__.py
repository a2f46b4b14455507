"""The stages of a run, one a file: what each is made from, which settings count, and the command that makes it.

Read by commands, flows and reports. Without Keras and without Prefect.
"""
