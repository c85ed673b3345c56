"""The engine that sends every distinct prompt token through the model once.

prompt_trie      prompts merged into a trie and laid out as one stream, in preorder
packs            the stream cut into units and packs
engine           execution of packs, and handling of exhausted memory
forward          one stretch of the stream through the model's layers
layout           attention visibility within a stretch: strands of tokens, blocks of keys
attention        the function that layers call, and attention over keys with the log-sum-exp by which parts merge
flex             attention of a whole pack in one kernel, on a GPU
key_value_store  keys and values of the path to the next token, and of metrics' prefixes
"""

from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine

__all__ = ["PrefixSharingEngine"]
