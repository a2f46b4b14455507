"""Devices and processes: how the rows of a batch are shared and the gradients of the shares added.

A file for each backend, loaded when it is the one in use.
"""
