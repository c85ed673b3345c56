"""Models on this machine: lookup by name, checks, loading, identity.

- `registry`: the known judges and the location of their files; `fetch` downloads them from the hub
- `load`: model and tokenizer from local files; `options`: arguments for transformers; `precision`: the dtype
- `config_checks`: checks of a judge, before and after its weights are loaded
- `gguf`: judges from GGUF files
- `progress`: reports how much of the weights has been read
- `adapter`: LoRA adapters, merged into the weights
- `chat_template`, `render_template`: the text around a prompt, up to the start of the answer
- `fingerprint`: the identity of a judge, by the content of its files
- `head`, `memory`: the read-out of a model; the memory of devices, and the memory that a judge needs
- `generate`: evaluation steps and reasons
"""
