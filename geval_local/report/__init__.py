"""Self-contained HTML pages of a run, of two runs side by side, or of many. The package only reads records.

- `reports`: a run, or many as a folder, in one call
- `run_page`, `comparison_page`: one run, also with human ratings; two runs
- `written_reasons`: reasons that `geval-local reasons` wrote, next to the rows that they explain
- `headline`: the first screen: the answer in a sentence, judges by metrics, every remark once
- `overview`: figures and settings that are readable without the script, the contents of the manifest, and the
  differences between the signatures of two runs
- `sections`: which system is better or preferred, as tables and as pictures
- `page`: the skeleton, its script and style, the policy that keeps sample text inert, and the compact columns that the
  script reads
"""
