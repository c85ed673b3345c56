"""One module per verb, or per group of verbs; each checks its options and calls the module that does the work.

- `score`, `serve`: scores and decisions
- `pairs`: comparisons of two outputs, and what they say of systems
- `evaluations`: one file for an evaluation
- `runs`: what is done with runs that have begun or ended; why rows got their scores; pages
- `metrics`, `judges`: what scores are made with
- `analyses`: what scores are worth
"""
