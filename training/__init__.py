"""How the embedded judge is made, from text to weights."""
