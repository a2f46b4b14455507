"""How data moves between the steps of a job: through the engine's own shuffle, or through files beside the output.

`exchange.py` says what there is to do, `files.py` and `engine.py` do it, and give the same bytes; `choice.py` takes one
of them. No step of a job knows which.
"""
