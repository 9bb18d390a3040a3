"""The terminal: tables, colours, progress, and the parser of a command."""
