"""What a terminal shows and how a command ends: escaped text, tables, progress, signals and exit statuses.

Nothing here knows what a stage is.
"""
