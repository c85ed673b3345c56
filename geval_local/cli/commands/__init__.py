"""One module per verb; each checks its options and calls the module that does the work.

- `score`, `resume`, `decide`, `serve`: scores and decisions
- `pairs`: comparisons of two outputs, and what they say of systems
- `init`, `run`: one file for an evaluation
- `reasons`: why chosen rows got their scores
- `steps`, `metrics`, `judges`, `cache`: what scores are made with
- `meta_eval`, `compare`, `bias`, `calibrate`, `jury`, `report`: what scores are worth
- `export`: a run handed over to another tool
"""
