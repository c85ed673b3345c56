"""Token ids to label log-probabilities: the engines, the probe that chooses between them, and the loop that runs them.

interface       input and output of every engine: requests, packs, read-outs
choose          choice of a model's engine and token budget
probe           prompts that test whether an engine is exact
batched         right-padded batches: every architecture; the reference for the others
shared_cache    batches that continue copies of the model's own cache: recurrent and hybrid models
prefix_sharing  every distinct prompt token once: transformers that take an attention function
self_check      whether the chosen engine and its attention compute correctly on this device
window          units of a window of rows, the loop that executes them, and their read-outs
"""
