"""Results to look at: self-contained HTML pages of a run, of two runs side by side, or of many. Reads records only.

- `run_page`, `comparison_page`: the two pages; `write_report` and `write_comparison` are imported from them
- `payload`: the records as the compact columns that the page's script reads
- `overview`: figures, reasons and settings that are readable without the script
- `described`: what the manifest beside the results tells
- `human_ratings`: scores beside human ratings
- `system_section`, `interval_chart`: which system is better, as tables and as a picture
- `pair_section`: which system is preferred, pair by pair; `written_reasons`: reasons beside their rows
- `site`: many runs as one folder, with an overview
- `pairing`, `signatures`: which rows of two runs belong together, and what the runs do not share
- `page`: the skeleton, its script and style, and the policy that keeps sample text inert

Importing the package loads nothing.
"""
