"""KerasHub presets, read and written without KerasHub and Keras.

One module each for serialised objects, the tokenizer, the weights, reading settings, and choosing KerasHub's class.
"""
