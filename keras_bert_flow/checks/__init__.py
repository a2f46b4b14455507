"""What is checked, estimated and drafted before work begins: `kbf doctor`, `kbf run --plan`, `kbf init`.

The rules of other rooms are only called here. Nothing here runs a stage or imports a backend.
"""
