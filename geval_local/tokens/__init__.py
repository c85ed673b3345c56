"""Text becomes token ids: prompts with their control tokens, and the labels that may follow them.

- `encoder`: prompts in a judge's prompt style; special tokens stay out of sample text, shared text is tokenized once
- `label_forms`: spellings of each label after a form; `label_trie`: all of these token sequences, merged
- `requests`: samples become requests for an engine, or errors with reasons; `thought_requests`: those that end where a
  thought begins, and what follows it

An engine receives a prompt's tokens and a label trie, nothing else.
"""
