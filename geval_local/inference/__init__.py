"""From a prompt to exact label probabilities: registry, loading, tokenization, label trie, forward pass, read-out.

Modules that need no weights (`registry`, `fingerprint`, `fetch`) import neither torch nor transformers, so that the
command line can list and fetch judges without the seconds those take to import.
"""
