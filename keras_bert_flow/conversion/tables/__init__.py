"""What Hugging Face calls the settings and tensors of each family of encoders, a file each; known without Keras.

No table reads or writes a file.
"""
