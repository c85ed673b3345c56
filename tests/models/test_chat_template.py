"""Prompt endings: a prompt ends where the template's own answers start, or the template is rejected."""

from __future__ import annotations

import functools
import json
import re
import subprocess

import pytest
from tiny import SHARED, byte_tokenizer, save_judge, shared_tokenizer, tiny_model

from geval_local.errors import TokenizerError
from geval_local.models.chat_template import chat_frame
from geval_local.models.load import load_model, load_tokenizer
from geval_local.models.registry import find_judge
from geval_local.prompt import Prompt
from geval_local.tokens.encoder import PromptEncoder

CUE = "- Coherence:"
TEMPLATES = SHARED / "templates"
ENDINGS = json.loads((TEMPLATES / "endings.json").read_text()) if (TEMPLATES / "endings.json").is_file() else {}
MARK = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]")


def tokenizer_with(template, *tokens, base=byte_tokenizer):
    tokenizer = base()
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


def ending(template, *tokens):
    """The end of a prompt, from the assistant's mark on."""
    tokenizer = tokenizer_with(template, *tokens)
    encoder = PromptEncoder(tokenizer, style="chat")
    text = encoder.readable_text(Prompt("Body </think> text.\n\n", CUE))
    assert text.endswith(CUE)
    # Marks in what the template wrote are control tokens, the one in the body is not.
    ids = encoder.encode([Prompt("Body </think> text.\n\n", CUE)])[0].tolist()
    after = text[text.index("text.") :]
    for token in tokens:
        assert ids.count(tokenizer.convert_tokens_to_ids(token)) == text.count(token) - (token == "</think>"), token
    return after.removesuffix(CUE).removeprefix("text.")


@functools.cache
def published(name):
    """A published template on a tokenizer that has its marks."""
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    marks = {mark for mark in MARK.findall(template + ENDINGS[name]["ends_with"]) if not mark.startswith("<function")}
    return template, tuple(sorted(marks | {"<think>", "</think>"}))


@pytest.mark.skipif(not ENDINGS, reason="needs ../shared/templates")
def test_there_are_21_published_endings():
    assert len(ENDINGS) == 21


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_a_published_template_ends_where_its_answers_start(name):
    template, marks = published(name)
    frame = chat_frame(tokenizer_with(template, *marks))
    assert frame.after.endswith(ENDINGS[name]["ends_with"])
    assert frame.closes_thinking == bool(re.search("think|thought", ENDINGS[name]["ends_with"], re.IGNORECASE))


# --- conventions that no published template of these has -----------------------------------------------------------

#: A conversation, with what the template writes before an answer and at the end of a prompt.
TURNS = (
    "{{% for m in messages %}}{{% if m.role == 'user' %}}<|user|>{{{{ m.content }}}}{{% else %}}<|assistant|>{history}"
    "{{% endif %}}{{{{ eos_token }}}}{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{prompt}{{% endif %}}"
)


def turns(prompt="", history="{{ m.content }}"):
    return TURNS.format(prompt=prompt, history=history)


SPLIT = "{{{{ m.content.split('{0}')[-1] }}}}".format
THOUGHTS = "{{% if m.reasoning_content %}}{0}{{{{ m.reasoning_content }}}}{1}{{% endif %}}{{{{ m.content }}}}".format
OWN = {
    "seed": (turns("<seed:think>\n"), ("<seed:think>", "</seed:think>"), "<seed:think>\n\n</seed:think>\n\n"),
    "upper case": (
        turns("<|START_THINKING|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        "<|START_THINKING|>\n<|END_THINKING|>\n\n",
    ),
    "the marks that it puts around thoughts": (
        turns("[THINK]", THOUGHTS("[THINK]", "[/THINK]\n")),
        ("[THINK]", "[/THINK]"),
        "[THINK][/THINK]\n",
    ),
    "diamonds": (turns("◁think▷"), ("◁think▷", "◁/think▷"), "◁think▷\n◁/think▷\n\n"),
    "a name that says nothing, shown": (
        turns("<|one|>\n", THOUGHTS("<|one|>\n", "\n<|two|>\n")),
        ("<|one|>", "<|two|>"),
        "<|one|>\n\n<|two|>\n",
    ),
    "a name that says nothing, dropped": (
        turns("<unused94>thought\n", SPLIT("<unused95>")),
        ("<unused94>", "<unused95>"),
        "<unused94>thought\n\n<unused95>\n\n",
    ),
    "a channel of its own for answers": (
        turns("<|channel|>analysis<|message|>", "<|channel|>final<|message|>{{ m.content }}"),
        ("<|channel|>", "<|message|>"),
        "<|channel|>final<|message|>",
    ),
    "a channel left open": (
        turns("<|channel>thought\n"),
        ("<|channel>", "<channel|>"),
        "<|channel>thought\n\n<channel|>\n\n",
    ),
    "thinking, then a mark for the answer": (
        turns("<think>\n", "<response>{{ m.content }}</response>"),
        ("<response>", "</response>"),
        "<think>\n\n</think>\n\n<response>",
    ),
    "a switch in the system message only": (
        "{% set ns = namespace(on=true) %}{% for m in messages %}"
        "{% if m.role == 'system' and '/no_think' in m.content %}{% set ns.on = false %}{% endif %}{% endfor %}"
        + turns("{% if ns.on %}<think>\n{% else %}<think></think>{% endif %}", SPLIT("</think>")),
        (),
        "<think>\n\n</think>\n\n",
    ),
    "a budget": (
        turns("{% if thinking_budget == 0 %}<think></think>{% else %}<think>{% endif %}"),
        (),
        "<think></think>",
    ),
    "answers that open with an empty block": (turns("<think>\n", "<think></think>{{ m.content }}"), (), None),
    "nothing of the kind": (turns("\n", "\n{{ m.content }}"), (), "\n"),
    "a space before answers": (turns("", " {{ m.content }}"), (), " "),
    "an answer's mark in the prompt alone": (turns("<|final|>"), ("<|final|>",), "<|final|>"),
    "no history": (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('one turn') }}{% endif %}<|user|>"
        "{{ m.content }}{% endfor %}<|assistant|><think>\n",
        (),
        "<think>\n</think>\n\n",
    ),
    "the generation tag": (turns("", "{% generation %}{{ m.content }}{% endgeneration %}"), (), ""),
    "a date": ("{{ strftime_now('%Y') }}{{ date_string or '' }}" + turns(), (), ""),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", OWN)
def test_a_convention_is_understood_by_the_rule(name):
    template, tokens, expected = OWN[name]
    found = ending(template, *tokens)
    after = found[found.rindex("<|assistant|>") + len("<|assistant|>") :]
    if expected is None:
        assert re.sub(r"\s", "", after) == "<think></think>"
    else:
        assert after == expected


SYSTEM = "Put your thoughts between {0} and {1}, then answer.<|eos|>\n".format
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]"
    "{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
)
EFFORT = (
    "{% set reasoning_effort = reasoning_effort | default('high') %}{% if reasoning_effort not in ['none', 'high'] %}"
    "{{ raise_exception('effort') }}{% endif %}<|set|>{{ reasoning_effort }}<|unset|>"
)
#: Template, tokens, the text between the assistant's mark and the answer, what is warned of.
REASONERS = {
    "prose to prose": (
        turns("Let me reason about this.\n", THOUGHTS("Let me reason about this.\n", "\nThat settles it:\n")),
        (),
        "Let me reason about this.\n\nThat settles it:\n",
        None,
    ),
    "prose that history does not repeat": (
        turns("\nMy reasoning steps:\n", "\n" + THOUGHTS("", "\n[BEGIN ANSWER]\n")),
        ("[BEGIN ANSWER]",),
        "\nMy reasoning steps:\n\n[BEGIN ANSWER]\n",
        None,
    ),
    "prose, cut from history at prose": (
        turns("Thinking aloud:\n", SPLIT("In short:\\n")),
        (),
        "Thinking aloud:\n\nIn short:\n\n",
        None,
    ),
    "marks in plain text": (turns("<thinking>\n"), (), "<thinking>\n\n</thinking>\n\n", None),
    "marks in plain text, shown": (
        turns("<work>\n", THOUGHTS("<work>", "</work> ")),
        (),
        "<work></work> ",
        None,
    ),
    "like R1-0528": (turns("", SPLIT("</think>")), (), "<think>\n\n</think>\n\n", None),
    "like R1-0528, in plain text": (
        turns("", SPLIT("</thinking>\\n")),
        (),
        "<thinking>\n\n</thinking>\n\n",
        None,
    ),
    "like Phi-4-reasoning": (SYSTEM("<think>", "</think>") + turns(), (), "", "between <think> and </think>"),
    "like Magistral": (
        SYSTEM("[THINK]", "[/THINK]") + turns("", PARTS),
        ("[THINK]", "[/THINK]"),
        "[THINK][/THINK]",
        None,
    ),
    "like Magistral, history of text only": (
        SYSTEM("[THINK]", "[/THINK]") + turns(),
        ("[THINK]", "[/THINK]"),
        "",
        r"between \[THINK\] and \[/THINK\]",
    ),
    "like Mistral Small 4": (EFFORT + turns("", PARTS), ("[THINK]", "[/THINK]"), "", None),
    "like gpt-oss": (
        "{% set reasoning_effort = reasoning_effort or 'medium' %}<|set|>{{ reasoning_effort }}<|unset|>"
        + turns("", "<|channel|>final<|message|>{{ m.content }}"),
        ("<|channel|>", "<|message|>"),
        "<|channel|>final<|message|>",
        None,
    ),
    "like Hunyuan": (
        turns(
            "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}",
            "{% set c = m.content %}{% if '<answer>' in c and '</answer>' in c %}{% set c = c.split('<answer>')[-1]"
            ".split('</answer>')[0] %}{% endif %}{{ c }}",
        ),
        (),
        "<think>\n\n</think>\n",
        None,
    ),
    "like Exaone Deep": (
        turns("<thought>\n", SPLIT("</thought>")),
        ("<thought>", "</thought>"),
        "<thought>\n\n</thought>\n\n",
        None,
    ),
    "like LFM 2.5": (
        turns("", "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"),
        (),
        "<think></think>",
        None,
    ),
    "like DeepSeek V3.1": (
        turns("{% if thinking %}<think>{% else %}</think>{% endif %}", "</think>" + SPLIT("</think>")),
        (),
        "</think>",
        None,
    ),
    "thoughts stripped by a filter": (
        turns(
            "<reason>",
            "{% set c = m.content %}{% if '</r>' in c %}{% set c = c.split('</r>')[1] | trim %}{% endif %}{{ c }}",
        ),
        ("<reason>", "</r>"),
        "<reason>\n</r>\n\n",
        None,
    ),
    "a block and a channel": (
        turns(
            "<think>\n",
            "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n{% endif %}<response>{{ m.content }}",
        ),
        ("<response>",),
        "<think>\n\n</think>\n<response>",
        None,
    ),
    "a mark of its own for not thinking": (
        turns("{% if enable_thinking is false %}<|skip_thinking|>{% else %}<think>{% endif %}"),
        ("<|skip_thinking|>",),
        "<|skip_thinking|>",
        None,
    ),
    "parts printed as they are": (
        turns("", "{{ m.content if m.content is string else m.content | tojson }}"),
        (),
        "",
        None,
    ),
    "an answer cut at a line that names nothing": (turns("", SPLIT("=====")), (), "", "thoughts before ====="),
    "thoughts in prose before every answer": (
        turns("Let me think.\n", "Let me think.\n{{ m.content }}"),
        (),
        "Let me think.\n",
        "ends a prompt with 'Let me think.'",
    ),
    "thoughts that stand elsewhere": (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{% else %}{% if m.thought %}<note>{{ m.thought }}"
        "</note>{% endif %}<|assistant|>{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        (),
        "",
        "knows earlier answers with thoughts",
    ),
    "a first word that history does not repeat": (turns("Sure! "), (), "Sure! ", "ends a prompt with 'Sure!'"),
}


@pytest.mark.sweep("like R1-0528")
@pytest.mark.parametrize("name", REASONERS)
def test_a_model_that_thinks_is_brought_to_its_answer_or_warned_of(name):
    template, tokens, expected, warned = REASONERS[name]
    assert ending(template, *tokens).rpartition("<|assistant|>")[2] == expected
    frame = chat_frame(tokenizer_with(template, *tokens))
    assert frame.after.endswith(f"<|assistant|>{expected}")
    assert frame.closes_thinking == (name not in ("like gpt-oss",) and warned is None and bool(expected))
    assert (frame.warning is None) if warned is None else re.search(warned, frame.warning)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (EFFORT, "none"),
        ("{{ reasoning_mode | default('deep') }}{% if 'Off' == reasoning_mode | trim %}!{% endif %}", "Off!"),
        ("{{ thinking }}{% if thinking == '/no_think' %}!{% endif %}", "/no_think!"),
        ("{{ reasoning_effort | default('medium') }}{% if tool_choice == 'none' %}!{% endif %}", "medium"),
        ("{{ reasoning_effort | default('low') }}{% if reasoning_effort in ['low', none] %}!{% endif %}", "low"),
    ],
)
def test_an_effort_gets_the_word_that_the_template_compares_it_with(template, written):
    before = chat_frame(tokenizer_with(template + turns())).before
    assert re.sub(r"<\|\w+\|>", "", before) == written


DEFAULT_OFF = {
    "a flag": "{% if enable_thinking is true %}<think>{% endif %}",
    "a flag with a default": "{% if thinking | default(false) %}<think>\n{% endif %}",
    "a word": "{% if reasoning_effort is defined and reasoning_effort != 'none' %}<think>\n{% endif %}",
    "a word for more": "{% if reasoning_mode == 'deep' and reasoning_mode != 'off' %}<think>\n{% endif %}",
    "a word by default": "{% set e = reasoning_effort | default('none') %}{% if e == 'high' %}<think>{% endif %}",
    "a word otherwise": "{% if (reasoning_effort or 'off') in ('low', 'high') %}<think>{% endif %}",
    "a budget": "{% if thinking_budget is defined and thinking_budget != 0 %}<think>{% endif %}",
}


@pytest.mark.parametrize("name", DEFAULT_OFF)
def test_a_template_that_thinks_only_when_it_is_told_to_gets_no_empty_block(name):
    template = turns(DEFAULT_OFF[name], SPLIT("</think>"))
    frame = chat_frame(tokenizer_with(template, "<think>", "</think>"))
    assert frame.after.endswith("<|assistant|>")
    assert (frame.closes_thinking, frame.warning) == (False, None)
    system = f"{{% if enable_thinking is true %}}on{{% endif %}}{turns('', SPLIT('</think>'))}"
    assert chat_frame(tokenizer_with(system, "<think>", "</think>")).after.endswith("<|assistant|>")


BUDGET_TURN = (
    "{% for m in messages %}<bos>{{ m.role }}\n{% if m.role == 'assistant' %}{{ m.content.split('</seed:think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<eos>{% endfor %}{% if thinking_budget == 0 %}<bos>system\nDo not think.<eos>"
    "{% endif %}{% if add_generation_prompt %}<bos>assistant\n"
)


@pytest.mark.parametrize(
    "end",
    [
        "<seed:think>",
        "{% if thinking_budget == 0 %}<seed:think></seed:think>{% endif %}",
        "<seed:think>{% if thinking_budget == 0 %}The budget is 0.</seed:think>{% endif %}",
    ],
)
def test_the_header_of_an_answer_is_written_once(end):
    template = f"{BUDGET_TURN}{end}{{% endif %}}"
    frame = chat_frame(tokenizer_with(template, "<bos>", "<eos>", "<seed:think>", "</seed:think>"))
    assert frame.after.count("<bos>assistant\n") == 1
    assert frame.after.rstrip().endswith("</seed:think>")


RENAMED = {
    "set": ("{% set mode = thinking_mode | default('auto') %}", "mode"),
    "twice": ("{% set a = thinking_mode or 'auto' %}{% set mode = a | lower %}", "mode"),
    "if": (
        "{% if thinking_mode is defined %}{% set mode = thinking_mode %}{% else %}{% set mode = '' %}{% endif %}",
        "mode",
    ),
    "namespace": ("{% set ns = namespace(mode=thinking_mode | default('auto')) %}", "ns.mode"),
    "attribute": ("{% set ns = namespace() %}{% set ns.mode = thinking_mode | default('auto') %}", "ns.mode"),
    "block": ("{% set mode %}{{ thinking_mode | default('auto') }}{% endset %}", "mode"),
    "tuple": ("{% set mode, other = thinking_mode | default('auto'), 1 %}", "mode"),
    "loop": (
        "{% set ns = namespace(mode='') %}{% for x in [thinking_mode] %}{% set ns.mode = x %}{% endfor %}",
        "ns.mode",
    ),
    "macro": (
        "{% macro off(mode) %}{{ 'y' if mode == 'no_think' }}{% endmacro %}{% set m = off(thinking_mode) %}",
        "m",
    ),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_switch_is_found_under_another_name(name):
    start, variable = RENAMED[name]
    word = "y" if name == "macro" else "no_think"
    end = f"{{% if {variable} == '{word}' %}}<think>\n\n</think>\n\n{{% endif %}}"
    frame = chat_frame(tokenizer_with(start + turns(end), "<think>", "</think>"))
    assert frame.after.endswith("<|assistant|><think>\n\n</think>\n\n")
    assert frame.closes_thinking


@pytest.mark.parametrize(
    "said",
    [
        "{% if thinking_mode is eq 'no_think' %}<think></think>{% endif %}",
        "{% if (thinking_mode or '').startswith('no_think') %}<think></think>{% endif %}",
        "{{ {'no_think': '<think></think>'}[thinking_mode] }}",
        "{{ '<think></think>' if thinking_mode | default('on') in ('no_think', 'none') }}",
    ],
)
def test_a_switch_is_found_however_it_is_asked(said):
    frame = chat_frame(tokenizer_with(turns(said), "<think>", "</think>"))
    assert frame.after.endswith("<|assistant|><think></think>")


@pytest.mark.parametrize(
    "written",
    [
        "{{ cycler('a', 'b') }}",
        "{{ joiner(', ') }}",
        "{{ cycler('a').next }}",
        "{{ namespace(c=cycler('a')) }}",
        "{{ messages | map(attribute='role') }}",
        "{{ [joiner()] | string }}",
        "{{ 'a'.upper }}",
    ],
)
def test_an_object_s_address_is_refused_like_chance(written):
    with pytest.raises(TokenizerError, match="the address of an object"):
        chat_frame(tokenizer_with(written + turns()))


def test_a_template_that_takes_content_only_in_parts_is_served():
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{% if p['type'] == 'text' %}{{ p['text'] }}"
        "{% endif %}{% endfor %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert ending(template).endswith("<|assistant|>")
    thinking = template.replace("{{ p['text'] }}", "{{ p['text'].split('</think>')[-1] }}") + "<think>\n"
    assert ending(thinking).endswith("<|assistant|><think>\n</think>\n\n")


def test_all_is_rendered_in_one_process(monkeypatch):
    started = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: started.append(args) or run(*args, **named))
    chat_frame(tokenizer_with(turns("<think>", "{# rendered once #}" + THOUGHTS("<think>", "</think>"))))
    assert len(started) == 1


def test_who_loads_a_judge_is_told_that_it_may_think(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    template, tokens, _, warned = REASONERS["like Phi-4-reasoning"]
    directory = save_judge(tmp_path / "judge", tiny_model("llama", 263), tokenizer_with(template, *tokens))
    load_tokenizer(find_judge(directory))
    assert [record.levelname for record in caplog.records if re.search(warned, record.getMessage())] == ["WARNING"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("template", "tokens", "says"),
    [
        (turns("<reason>\n"), ("<reason>",), "inside <reason>.*no token that is known to close it"),
        (turns("<|ponder|>"), (), r"inside <\|ponder\|>"),
        (turns("<reason>\n", "<reason>\n{{ m.content }}"), ("<reason>",), "inside <reason>"),
        (turns("<|x9|>"), ("<|x9|>",), r"inside <\|x9\|>"),
        (turns("Let me think.\n"), (), r"inside Let me think\.,"),
        (turns("{{ raise_exception('no luck') }}"), (), "fails: TemplateError: no luck"),
        ("{% for m in messages %}{{ m.content }}", (), "fails: TemplateSyntaxError: .*line 1"),
        (turns("{{ nothing.at.all }}"), (), "fails: UndefinedError: 'nothing' is undefined"),
        (turns("{{ nothing() }}"), (), "fails: UndefinedError"),
        (turns("{% for t in tools %}{{ t }}{% endfor %}"), (), "fails: TypeError"),
        (turns("{{ 'x' * 10**10 }}"), (), "fails: MemoryError"),
        (turns("{{ 'x' * 10**7 }}"), (), "writes 10,000,0.. characters"),
        (turns("{{ '%10000000000d' % 1 }}"), (), "fails: MemoryError"),
        (turns("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), (), "fails: RecursionError"),
        (turns("{{ ().__class__.__mro__ }}"), (), "fails: SecurityError"),
        ("{{ bos_token }}", (), "exactly once"),
        ("{% for m in messages %}{{ m.content * 2 }}{% endfor %}", (), "exactly once"),
        ({"tool_use": turns()}, (), r"names chat templates \(tool_use\), but none of them is the default"),
        (7, (), "not a text, but of type int"),
    ],
)
def test_a_template_that_cannot_serve_is_refused(template, tokens, says):
    with pytest.raises(TokenizerError, match=says) as caught:
        PromptEncoder(tokenizer_with(template, *tokens), style="chat")
    assert "`style=completion`" in caught.value.hint
    PromptEncoder(tokenizer_with(template, *tokens))


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    "endless",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ loop.index }}{% endfor %}{% endfor %}",
        "{{ 10 ** (10**10) }}",
    ],
)
def test_a_template_without_end_is_given_up(endless):
    with pytest.raises(TokenizerError, match=r"does not come to an end|MemoryError"):
        chat_frame(tokenizer_with(turns(endless)))


def test_no_mark_is_written_that_is_no_token():
    """The template drops the text before </close>, and its name would close <think-x>; neither is a token here."""
    template = turns("<think-x>\n", SPLIT("</close>"))
    with pytest.raises(TokenizerError, match="inside <think-x>"):
        chat_frame(tokenizer_with(template, "<think-x>"))
    assert chat_frame(tokenizer_with(template, "<think-x>", "</close>")).after.endswith("<think-x>\n\n</close>\n\n")


def test_the_default_of_several_templates_is_taken():
    tokenizer = tokenizer_with({"default": turns("!"), "tool_use": turns("?")})
    assert chat_frame(tokenizer).after.endswith("<|assistant|>!")


def test_a_template_is_refused_with_its_file_before_any_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    directory = save_judge(tmp_path / "judge", tiny_model("llama", 263), byte_tokenizer())
    (directory / "chat_template.jinja").write_text(turns("<|reason|>\n"))
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(TokenizerError, match=r"judge '.*': .*chat_template\.jinja: .*inside <\|reason\|>"):
        load_model(find_judge(directory))
    load_tokenizer(find_judge(directory).model_copy(update={"style": "completion"}))


def test_a_directory_and_a_models_file_agree(tmp_path, monkeypatch):
    """A judge's name does not affect its prompts."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    template = turns("{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}")
    directory = save_judge(tmp_path / "judge", tiny_model("llama", 263), tokenizer_with(template))
    (tmp_path / "models.yaml").write_text("judges:\n  named:\n    path: judge\n    dtype: float64\n")
    prompt = Prompt("Body.\n\n", CUE)
    entries = [find_judge(directory), find_judge("named", tmp_path / "models.yaml")]
    texts = [PromptEncoder(load_tokenizer(entry), style=entry.style).readable_text(prompt) for entry in entries]
    assert texts[0] == texts[1]
    assert texts[0].endswith(f"<|assistant|><think></think>{CUE}")


@pytest.mark.slow
def test_a_prefilled_answer_stands_where_mistrals_history_puts_it():
    """With SentencePiece, "[/INST] - Coherence" and "[/INST]- Coherence" are different tokens."""
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
        "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}"
    )
    tokenizer = tokenizer_with(template, base=functools.partial(shared_tokenizer, "mistral"))
    encoder = PromptEncoder(tokenizer, style="chat")
    messages = [{"role": "user", "content": "Body."}, {"role": "assistant", "content": f"{CUE} 4"}]
    history = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    ids = encoder.encode([Prompt("Body.\n\n", CUE)])[0].tolist()
    assert ids == history[: len(ids)]
    bare = PromptEncoder(tokenizer, style="chat-no-prefill").readable_text(Prompt("Body.\n\n", CUE))
    assert bare.endswith(f"{CUE}[/INST]")
