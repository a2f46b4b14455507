"""What a run would make and take, told from a sample of its inputs: `kbf run --plan`. Nothing here runs a stage."""
