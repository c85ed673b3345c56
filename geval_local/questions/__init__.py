"""Typed questions about any evidence, and their answers: pure, as `Metric` is.

- `question`: predicates, choices and scores, from Python, YAML or JSON
- `form`: how a question is put to a model: the evidence first, the question last, short labels for the options
- `answer`: probabilities, label mass, confidence, or why there is no answer
- `pair`: which of two outputs is better on a metric

`Judge.decide` answers them; a question becomes a form with a scale, so metrics and questions share one implementation.
"""
