"""Reference metrics of other people, as rows beside a judge.

- `overlap`: length, ROUGE, BLEU and chrF, without a model
- `gptscore`: how probable the judge finds the output
- `reference_models`: BERTScore, BARTScore and UniEval on weights that the user has; `unieval`: UniEval's questions
"""
