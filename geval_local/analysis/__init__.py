"""Can the scores be trusted? Everything here reads records, never models.

- `records`: the one shape that all analyses share, and the reader of result files
- `benchmarks`, `responses`, `published`: other people's files, outputs and tables
- `correlation`, `significance`, `agreement`: scores against human ratings, and against each other
- `sampling`: what estimating a score from draws costs
- `bias`, `prior`, `calibration`, `jury`: what goes wrong with scores, and what can be done about it
- `baselines`: length, ROUGE, BLEU and chrF in the same table
- `rated`, `evaluation`, `ablation`: what is rated by whom, and the whole of a meta-evaluation
- `tables`: results as headers and rows

Names are imported from these modules; importing the package itself loads nothing.
"""
