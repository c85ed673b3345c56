"""Studies of scored records.

- `evaluation`: a whole meta-evaluation: all contenders against people and against each other
- `comparison`: two runs item by item
- `ceiling`: how far people agree, and the judge in the place of one of them
- `systems`, `sides`: which system is better; the mean of a side, and the test of two
- `bias`, `length`, `prior`: whom a judge favours, what length does, what the form alone says
- `calibration`, `calibration_maps`: scores brought to the ratings' scale, judged on held-out documents
- `jury`: several judges as one, against its best judge
- `pairs`: systems by comparisons, the judge's consistency, agreement with people's comparisons
- `ablation`, `sampling`: other estimates from the same distributions, and what sampling costs
"""
