"""The prefix-sharing engine: every distinct prompt token goes through the model once."""
