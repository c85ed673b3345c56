"""The engine that sends every distinct prompt token through the model once.

prompt_trie      prompts merged into a trie and laid out as one stream, in preorder; who sees whom within a pack
packs            the stream cut into units and packs
engine           a stretch through the model's layers, execution of packs, retries when memory runs out
attention        the function that layers call, and attention over keys with the log-sum-exp by which parts merge
flex             attention of a whole pack in one kernel, on a GPU
key_value_store  keys and values of the path to the next token, and of metrics' prefixes
"""
