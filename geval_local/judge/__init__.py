"""Who scores: the judge, from samples to scores.

- `judge`: `Judge`, with the signature of its scores, the key of its cached read-outs, what is kept for the next start
- `steps`: evaluation steps, written once; `audit`: the tokens of a prompt and of its labels
- `scorer`: samples through an engine, window by window, into scores, also for an event loop; questions too
- `decisions`: what `Judge.decide` does
- `batcher`: calls of many threads, gathered and computed together by the one thread that owns the model
- `kept_prefixes`: the text of a batch that the engine keeps for the batches that follow
- `thoughts`: what a judge that thinks draws before the labels are read
- `reason_writer`: the second pass, in which a judge writes why a text got its label
"""
