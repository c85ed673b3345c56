"""Prompts as text: the form filled for each sample, and the steps prompt (Liu et al., 2023, section 2).

A prompt is a *body* and a *cue*. The cue is the form's last line ("- Coherence:"); the label is the model's next text.
Independent of tokens and chat templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from geval_local.errors import DataError, MetricError
from geval_local.fields import PLACEHOLDER, placeholder_field, split_cue
from geval_local.files import check_is_file
from geval_local.metric import Metric
from geval_local.scale import Scale

#: Edition of the request to chat models next to the paper's form; part of every signature of a chat style.
CHAT_FORM = 3
#: Larger scales are shown by their first two labels and the last: every line is computed again for every sample.
LABELS_SHOWN = 10
REASON_REQUEST = (
    "Why does it get this score? Answer in one to three sentences, and quote the words that decided it in quotation "
    "marks, exactly as they stand above."
)
REASON_CUE = "Reason:"

#: What a judge is asked that reasons before the form, since its chat template knows no thoughts.
ANALYSIS_REQUEST = "First write a short analysis: one paragraph that follows {outline}. Give no score in it."
ANALYSIS_END = "Then leave a line empty and answer."
ANALYSIS_CUE = "Analysis:"
#: Edition of these three and their places in a prompt; part of the signature of a judge that reasons first.
ANALYSIS_FORM = 1


@dataclass(frozen=True)
class Prompt:
    """A filled prompt."""

    #: Everything before the form's last line.
    body: str
    #: The form's last line, without trailing white space; the label follows it.
    cue: str
    #: Request to a chat model after the body, where the cue starts a separate answer: it would otherwise write about
    #: the text where a plain language model just continues the form. Empty in prompts used verbatim.
    request: str = ""
    #: The end of the body that belongs to the form, its heading: a judge that reasons first does so before it.
    heading: str = ""
    #: What an analysis before the form is to follow.
    outline: str = "the instructions above"

    @property
    def text(self) -> str:
        """The whole prompt as one completion text, as the paper has it."""
        return self.body + self.cue

    @property
    def question(self) -> str:
        """The user's turn of a chat in which the cue starts the assistant's turn."""
        return f"{self.body.rstrip()}\n\n{self.request}" if self.request else self.body.rstrip()

    @property
    def analysis_request(self) -> str:
        """What a judge is asked that reasons before the form."""
        return ANALYSIS_REQUEST.format(outline=self.outline)


def form_filler(metric: Metric) -> Callable[[Mapping[str, str]], Prompt]:
    """Get ready to fill a metric's form for many samples: what they share is composed once."""
    if metric.template is not None:
        template = metric.template
        return lambda fields: _fill_template(template, lambda name: fields[placeholder_field(name, fields)])
    cue = f"- {metric.title}:" if metric.pair is None else f"- {metric.title}{metric.phrase('pair_cue')}:"
    names = list(metric.fields)
    headings = [f"{heading}:\n\n" for heading in metric.fields.values()]
    openings = [headings[0], *(f"\n\n{heading}" for heading in headings[1:])]
    heading = metric.phrase("form" if metric.pair is None else "pair_form").replace("{labels}", metric.shown_scale)
    ending = f"\n\n{heading}\n\n"
    request = _answer_request(metric.phrase("answer"), cue, metric.scale.labels)
    outline = "the evaluation steps" if metric.steps else "the evaluation criteria"

    def filled(fields: Mapping[str, str]) -> str:
        parts = [part for opening, name in zip(openings, names, strict=True) for part in (opening, fields[name])]
        return "".join([*parts, ending])

    before = _instructions(metric)
    if metric.examples:
        before += [*_examples(metric, filled, cue), metric.phrase("sample")]
    start = "\n\n".join([*before, ""])
    return lambda fields: Prompt(start + filled(fields), cue, request, f"{heading}\n\n", outline)


def _examples(metric: Metric, filled: Callable[[Mapping[str, str]], str], cue: str) -> list[str]:
    """Show every example as the form that a judge has filled in, with the reason behind the label, if it has one."""
    blocks = [metric.phrase("examples")]
    for number, one in enumerate(metric.examples, start=1):
        form = f"{filled(one.texts)}{cue} {one.label}"
        why = [f"{metric.phrase('reason')} {one.reason}"] if one.reason else []
        blocks += [metric.phrase("example").replace("{number}", str(number)), form, *why]
    return blocks


def examples_text(metric: Metric) -> str:
    """Write what the examples add to a metric's prompts."""
    texts = dict.fromkeys(metric.fields, "A")
    bare, shown = (form_filler(one)(texts).body for one in (metric.model_copy(update={"examples": ()}), metric))
    end = next((at for at, (one, other) in enumerate(zip(bare, shown, strict=False)) if one != other), len(bare))
    return shown[end : end + len(shown) - len(bare)]


def sharing(metrics: Sequence[Metric]) -> list[list[int]]:
    """Group metrics whose forms begin with the same words and the same field, so that a sample's text is shared.

    The paper's form puts a metric's own criteria before the texts, so that all samples share them: there every metric
    is a group of its own. Published prompts may open with the source.
    """
    groups: dict[object, list[int]] = {}
    for place, metric in enumerate(metrics):
        groups.setdefault(_opening(metric, place), []).append(place)
    return list(groups.values())


def _opening(metric: Metric, place: int) -> object:
    """Give what a form opens with: its words before the first field, and that field; the criteria make it unique."""
    if metric.template is None:
        return place
    match = PLACEHOLDER.search(metric.template)
    return place if match is None else (metric.template[: match.start()], placeholder_field(match[1], metric.fields))


def render_form(metric: Metric, fields: Mapping[str, str]) -> Prompt:
    """Fill a metric's form for one sample."""
    return form_filler(metric)(fields)


def render_steps_prompt(metric: Metric, *, instruct: bool = False) -> Prompt:
    """Compose the prompt of the auto chain-of-thought pass: the model continues the numbered list."""
    blocks = _instructions(metric.with_steps(()))
    asked = [metric.phrase("write_steps")] if instruct else []
    return Prompt("\n\n".join([*blocks, *asked, metric.phrase("steps"), ""]), "1.")


def render_reason_prompt(
    metric: Metric, fields: Mapping[str, str], label: str, request: str = REASON_REQUEST
) -> Prompt:
    """Compose the prompt of a reason: the form, filled with a label, and the question why.

    The score has been read from the form before; nothing in this prompt can change it. If the last of several lines of
    the request ends with a colon, the reason begins after it.
    """
    question, _, cue = request.strip().rpartition("\n")
    if not question or not cue.endswith(":"):
        question, cue = request.strip(), REASON_CUE
    return Prompt(f"{render_form(metric, fields).text} {label}\n\n{question.rstrip()}\n\n", cue)


def metric_from_prompt_file(path: str | Path, scale: Scale | str, *, name: str | None = None) -> Metric:
    """Read a published prompt file as a metric that uses it verbatim.

    Newlines are read as in Python's text mode (carriage returns go), which is how G-Eval's own script reads its
    files; white space after the form's last line is dropped, because the surface forms of labels include it.

    Parameters
    ----------
    path : str or Path
        A text with ``{{Document}}``-like placeholders that ends in the form's cue, such as ``- Coherence:``.
    scale : Scale or str
        The scale, which such a file only describes in words.
    name : str, optional
        Name of the metric; the file's name without its suffix when absent.

    Raises
    ------
    MetricError
        If the file cannot be read, holds no placeholder, or does not end in a cue.
    """
    path = Path(path)
    try:
        check_is_file(path)
        text = path.read_text(encoding="utf-8-sig")
    except DataError as error:
        raise MetricError(f"cannot read the prompt file: {error.message}", hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise MetricError(f"cannot read the prompt file {path}: {error}") from error
    names = list(dict.fromkeys(placeholder_field(match[1]) for match in PLACEHOLDER.finditer(text)))
    if not names:
        raise MetricError(
            f"the prompt file {path} holds no placeholder", hint="Mark the sample's fields: {{Document}}, {{Summary}}."
        )
    cue = _fill_template(text, lambda placeholder: "").cue
    title = re.sub(r"\s*\([^)]*\)", "", cue).strip("-*: \t")
    if not title or PLACEHOLDER.search(text.rstrip().rsplit("\n", 1)[-1]):
        raise MetricError(f"the prompt file {path} does not end in a form line such as '- Coherence:'")
    return Metric(
        name=name or re.sub(r"[^\w.-]+", "_", path.stem),
        title=title,
        criteria=f"As written in {path.name}.",
        scale=Scale.parse(scale),
        fields={field: field for field in names},
        template=text,
    )


def _shown(labels: Sequence[str], lead: str) -> list[str]:
    """List labels, of many the first two and the last."""
    lines = [lead + label for label in labels]
    return lines if len(lines) <= LABELS_SHOWN else [*lines[:2], "...", lines[-1]]


def _answer_request(request: str, cue: str, labels: Sequence[str]) -> str:
    """Show a chat model the lines that it may answer with: what it sees written it writes, in the same words."""
    return "\n".join([request, "", *_shown(labels, f"{cue} ")])


def _instructions(metric: Metric) -> list[str]:
    """Blocks shared by all samples of a metric: introduction, criteria with rubric, steps."""
    criteria = f"{metric.title} ({metric.shown_scale}) - {metric.criteria}"
    if metric.rubric:
        criteria += "".join(f"\n- {label}: {text}" for label, text in metric.rubric.items())
    blocks = [metric.introduction, metric.phrase("criteria"), criteria]
    if metric.steps:
        numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(metric.steps, start=1))
        blocks += [metric.phrase("steps"), numbered]
    return blocks


def _fill_template(template: str, value: Callable[[str], str]) -> Prompt:
    """Split off the cue before filling, so that white space at the end of a sample's text is never taken for it."""
    body, cue = split_cue(template)
    # The last paragraph, if it holds no field.
    last = body.rstrip().rpartition("\n\n")[2]
    heading = "" if PLACEHOLDER.search(last) else body[body.rindex(last) :]
    # One pass over the template: placeholders inside a sample's own text stay text.
    return Prompt(PLACEHOLDER.sub(lambda match: value(match[1]), body), cue, heading=heading)
