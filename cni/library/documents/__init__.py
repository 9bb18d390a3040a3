"""Documents that people write, JSON and YAML, read past their faults, with the place of each part.

reader    text becomes documents               jsontext     JSON, past its faults    tree   a document
text      places in a file                     diagnostic   a fault with its place and remedy
scope     a document that notes diagnostics    refusals     of pydantic's models, in this project's words
"""
