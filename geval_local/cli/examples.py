"""The help of verbs: each ends with examples, lines are not broken by hand, and flags have no type."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from geval_local.cli.output.console import set_options

#: Verb -> command lines.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "score": (
        "geval-local score chats.csv -m assistant/helpfulness --field output='bot reply' -o scored.csv",
        "geval-local score chats.csv -m rag/faithfulness -j model.gguf --fail-under 3.5",
    ),
    "decide": ("geval-local decide tickets.jsonl -q questions.yaml --state message -o decisions.csv",),
    "resume": ("geval-local resume runs/first",),
    "init": ("geval-local init chats.csv",),
    "run": ("geval-local run evaluation.yaml --set data.chats.limit=10",),
    "merge": ("geval-local merge runs/big -o scores.jsonl",),
    "steps": ("geval-local steps my_metric.yaml -j qwen2.5-7b",),
    "reasons": ("geval-local reasons scored.csv -m assistant/helpfulness --lowest 10 -o reasons.jsonl",),
    "report": ("geval-local report scored.csv -o report.html", "geval-local report runs/a runs/b -o site/"),
    "export": ("geval-local export runs/first --mlflow",),
    "meta-eval": ("geval-local meta-eval scored.jsonl --human rating",),
    "compare": ("geval-local compare runs/a runs/b -m assistant/helpfulness",),
    "pairs": ("geval-local pairs outputs.jsonl -m summarization/coherence --group-by doc -o pairs.jsonl",),
    "preferences": ("geval-local preferences pairs.jsonl",),
    "bias": ("geval-local bias scored.jsonl --side system_id",),
    "calibrate": ("geval-local calibrate scored.jsonl --human rating -o calibration.json",),
    "jury": ("geval-local jury runs/a runs/b -o jury.jsonl",),
    "estimate": ("geval-local estimate scored.jsonl --human rating --share 4",),
    "serve": ("geval-local serve -j nano --port 8000",),
    "cache": ("geval-local cache",),
    "judges list": ("geval-local judges list",),
    "judges check": ("geval-local judges check nano",),
    "judges fetch": ("geval-local judges fetch qwen2.5-0.5b",),
    "metrics list": ("geval-local metrics list",),
    "metrics show": ("geval-local metrics show rag/faithfulness",),
    "metrics new": ("geval-local metrics new support/politeness -o politeness.yaml",),
    "metrics validate": ("geval-local metrics validate politeness.yaml",),
}


class Verb(TyperCommand):
    """A verb, whose help is laid out as this module says."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, whose options are named in messages."""
        set_options(self.params)
        return super().invoke(ctx)

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option --help, without a type as other flags."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the examples of the verb at its end."""
        lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        self.epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
        super().format_help(ctx, formatter)
