"""The parts of `geval_local.Judge` above the engine.

- `scorer`: samples through an engine, window by window, into scores; several questions about one evidence
- `progress`: how callers hear how far it is, also beside an event loop
- `decisions`: what `Judge.decide` does
- `batcher`: calls of many threads, gathered and computed together by the one thread that owns the model
- `kept`: which text of a batch the engine keeps for the batches that follow
- `reasons`: the second pass, in which a judge writes why a text got its label
- `identity`: what scores depend on: the signature, and the key of cached read-outs
"""
