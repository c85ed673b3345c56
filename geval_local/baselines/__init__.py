"""Reference metrics by other authors, for comparison with a judge.

- `overlap`: length, ROUGE, BLEU and chrF, without a model
- `gptscore`: the judge's likelihood of the output
- `reference_models`: BERTScore, BARTScore and UniEval on the user's weights; `unieval`: UniEval's questions
"""
