"""Judges from GGUF files.

- `file`: recognition by content, headers, joining of split models
- `model`: configuration, tokenizer and weights, which stay in their blocks; `blocks`: these, widened to full numbers
- `keys`, `rope`: every key of a file is obeyed, known to change no figure, or refused by name
"""
