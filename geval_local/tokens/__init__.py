"""Text to tokens: prompts, surface forms of labels, the label trie, and requests for the engine."""
