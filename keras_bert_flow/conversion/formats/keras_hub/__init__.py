"""Presets of KerasHub, read and written without KerasHub and Keras: a file each for the objects in their JSON files,
the tokenizer, the weights, the settings that are read, and the models that fit.
"""
