"""Families of encoders, one a file: the shape, and by name the layers it is assembled from; known without Keras."""
