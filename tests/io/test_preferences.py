"""Preferences as people write them: words, letters, signs, one-hot columns; kept apart from ratings of one output."""

from __future__ import annotations

import pytest
from cli_run import METRIC, judge_directory, read_rows, run, write_rows

from geval_local.errors import ConfigurationError, FieldError
from geval_local.io.pairs import given_sample, sides_of
from geval_local.io.samples import Sample
from geval_local.options import PreferenceOptions
from geval_local.runs.run_file import read_run
from geval_local.wording import say_once


@pytest.mark.parametrize(
    ("value", "side"),
    [
        *((one, 1.0) for one in ("A>B", "a>>b", "A > B", "model_a", "Model A", "Response A", "First", 1, "1", 1.0)),
        *((one, 0.0) for one in ("B>A", "A<B", "B>>A", "model_b", "second", 0)),
        *((one, 0.5) for one in ("tie", "A=B", "draw", 0.5)),
        *((one, "both_bad") for one in ("tie (bothbad)", "both bad", "both_bad")),
    ],
)
def test_words_for_a_side(value, side):
    assert sides_of({"human": value}, "human") == [side]


def test_a_side_is_named_by_its_system():
    row = {"system_a": "GPT-4o", "system_b": "Llama 3"}
    for value, side in (("gpt-4o", 1.0), ("Llama 3", 0.0), ("model_a", 1.0), ("tie", 0.5), (1, 1.0)):
        assert sides_of({**row, "p": value}, "p") == [side]
    numbered = {"system_a": "2", "system_b": "1", "p": 1}
    assert sides_of(numbered, "p") == [1.0]


def test_systems_in_the_other_order_do_not_turn_the_preference():
    row = {"system_a": "response_b", "system_b": "response_a"}
    assert sides_of({**row, "p": "response_b"}, "p") == [1.0]
    assert sides_of({**row, "p": "tie"}, "p") == [0.5]
    with pytest.raises(ValueError, match="p is 'model_b'"):
        sides_of({**row, "p": "model_b"}, "p")


def test_numbers_beyond_one_are_asked_about():
    with pytest.raises(ConfigurationError, match="beyond 0 to 1, such as 2") as caught:
        sides_of({"p": 2}, "p")
    assert "`prefers=1=a,2=b,0=tie`" in str(caught.value.hint)


def test_people_of_a_list_and_nobody():
    assert sides_of({"human": ["A>B", "tie", 0]}, "human") == [1.0, 0.5, 0.0]
    assert sides_of({"human": None}, "human") == sides_of({}, "human") == []


def test_one_hot_columns():
    row = {"winner_model_a": 0, "winner_model_b": "1", "winner_tie": 0}
    assert sides_of(row, "human") == [0.0]
    assert sides_of({"links": True, "rechts": False}, "human", {"links": "a", "rechts": "b"}) == [1.0]
    with pytest.raises(ValueError, match="one is to be 1, not 2"):
        sides_of({**row, "winner_tie": 1}, "human")
    assert sides_of(row, "winner_model_b") == sides_of({"winner_model_b": 1}, "winner_model_b") == [0.0]
    with pytest.raises(ValueError, match="winner_model_b is 'b'"):
        sides_of({**row, "system_a": "model_b", "system_b": "model_a"}, "human")


def test_signs_mean_what_somebody_says():
    signs = {"-": "a", "+": "b"}
    assert [sides_of({"p": n}, "p", signs) for n in (-3, -1, 0, 2)] == [[1.0], [1.0], [0.5], [0.0]]
    with pytest.raises(ConfigurationError, match="nothing says which side they mean") as caught:
        sides_of({"p": -3}, "p")
    assert "`prefers=-=a,+=b`" in str(caught.value.hint)


def test_with_a_mapping_only_its_values_count():
    words = {"left": "a", "Right": "b", "1": "b"}
    assert [sides_of({"p": one}, "p", words) for one in ("Left", "right", 1)] == [[1.0], [0.0], [0.0]]
    with pytest.raises(ValueError, match="p is 0, not one of left, right, 1"):
        sides_of({"p": 0}, "p", words)
    assert PreferenceOptions(prefers="left=a,right=b,none=both_bad").prefers == {
        "left": "a",
        "right": "b",
        "none": "both_bad",
    }
    with pytest.raises(ConfigurationError, match="'c' is no side"):
        PreferenceOptions(prefers="left=c")


def test_several_rejected_texts_are_not_one(tmp_path):
    lost = given_sample(Sample({"prompt": "P", "chosen": ["Good."], "rejected": ["x", "y"]}, 1), "preference")
    assert "it has 2 texts for one side; `score` with `system_columns`" in str(lost.error)
    one = given_sample(Sample({"prompt": "P", "chosen": ["Good."], "rejected": ["x"]}, 1), "preference")
    assert (one.fields["output_a"], one.fields["output_b"]) == ("Good.", "x")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC.replace("source: Source", "question: Question"), encoding="utf-8")
    labels = ("A>B", "B>A", "A=B", "both bad")
    rows = [
        {"question": f"Why {n}?", "left": f"Since {n}.", "right": f"No {n}.", "label": labels[n % 4], "lang": "en"}
        for n in range(8)
    ]
    write_rows(tmp_path / "wide.jsonl", rows)
    return tmp_path


def call(*arguments):
    return run(*arguments, home="home")


JUDGED = ("-m", "clarity.yaml", "-j", judge_directory())


def test_plain_pairs_in_columns_and_words_of_their_own(place):
    mapped = ("--field", "output_a=left", "--field", "output_b=right", "--field", "human=label", "--given", "plain")
    done = call("pairs", "wide.jsonl", *JUDGED, *mapped, "-o", "p.jsonl")
    assert done.exit_code == 0, done.stderr
    rows = read_rows(place / "p.jsonl")
    assert [row["human"] for row in rows[:4]] == [1.0, 0.0, 0.5, "both_bad"]
    assert rows[0]["label"] == "A>B"
    shown = call("rank", "p.jsonl")
    assert shown.exit_code == 0, shown.stderr
    assert "people call both bad 2 times" in " ".join((shown.stdout + shown.stderr).split())
    swapped = call("rank", "p.jsonl", "--human", "label", "--prefers", "A>B=b,B>A=a,A=B=tie,both bad=tie")
    assert swapped.exit_code == 0, swapped.stderr
    wrong = call("rank", "p.jsonl", "--human", "label", "--prefers", "A>B=b,B>A=a")
    assert (wrong.exit_code, "label is 'A=B', not one of a>b, b>a" in wrong.stderr) == (2, True)


def test_an_option_that_finds_nothing_fails_and_the_printed_command_works(place):
    done = call("pairs", "wide.jsonl", *JUDGED, "--system-columns", "left", "right", "-o", "p.jsonl")
    assert done.exit_code == 0, done.stderr
    assert "geval-local rank p.jsonl --human FIELD\n" in done.stderr
    rows = read_rows(place / "p.jsonl")
    assert (rows[0]["label"], rows[0]["lang"], rows[0]["system_a"]) == ("A>B", "en", "left")
    lost = call("rank", "p.jsonl", "--human", "no_such_column")
    assert lost.exit_code == 2
    assert "no row has people's preference in 'no_such_column'" in lost.stderr
    found = call("rank", "p.jsonl", "--human", "label", "--json")
    assert found.exit_code == 0, found.stderr
    assert '"agreement": {' in found.stdout
    assert "human" not in rows[0]


def test_pairs_of_published_formats_keep_the_columns_of_the_input(place):
    more = {"id": 3, "lang": "de", "source": "evol", "label": 7, "document": "d9", "score_chosen": 4.5}
    row = {"prompt": [{"role": "user", "content": "Why?"}], "chosen": "Because.", "rejected": "No.", **more}
    pair = given_sample(Sample(row, 1, "d.jsonl"), "preference")
    kept = {"id": 3, "lang": "de", "original_source": "evol", "original_label": 7, "original_document": "d9"}
    assert {**pair.fields, **kept, "score_chosen": 4.5} == pair.fields
    assert not {"chosen", "rejected", "source", "label"} & pair.fields.keys()
    assert pair.texts(["source"]) == {"source": "User: Why?"}  # as without these columns
    for words in ({"output_a": "x", "output_b": "y"}, row):
        with pytest.raises(FieldError, match="'context' is mapped to 'context', which is not there"):
            given_sample(Sample(words, 1), "plain" if "output_a" in words else "preference").texts(["context"])
    bar = {"input": "Why?", "output_1": "Because.", "output_2": "No.", "label": 1, "subset": "Natural"}
    kept = given_sample(Sample(bar, 1), "llmbar").fields
    assert (kept["subset"], kept["original_label"], kept["human"]) == ("Natural", 1, [1.0])
    write_rows(place / "prefer.jsonl", [row])
    done = call("pairs", "prefer.jsonl", *JUDGED, "--given", "preference", "-o", "p.jsonl")
    assert done.exit_code == 0, done.stderr
    assert {"lang": "de", "original_source": "evol"}.items() <= read_rows(place / "p.jsonl")[0].items()


def test_the_source_of_a_preference_is_shown_as_it_was_read(place):
    write_rows(place / "prefer.jsonl", [{"prompt": f"Why {n}?", "chosen": "So.", "rejected": "No."} for n in range(4)])
    judged = ("-m", "summarization/coherence", "--no-steps", "-j", judge_directory())
    command = ("pairs", "prefer.jsonl", *judged, "--given", "preference", "-o", "p/")
    for _ in range(2):  # the complete run is known again
        done = call(*command)
        assert done.exit_code == 0, done.stderr
    assert "complete" in done.stderr
    assert read_run("p").settings.fields == {"source": "prompt"}  # pages and tables show it by these


def test_signs_are_asked_for_before_a_judge_is_loaded(place):
    write_rows(place / "signs.jsonl", [{"question": "Q", "output_a": "x", "output_b": "y", "human": -2}])
    judge = ("-m", "clarity.yaml", "-j", "no-such-judge")
    done = call("pairs", "signs.jsonl", *judge, "--given", "plain", "-o", "p.jsonl")
    assert (done.exit_code, "--prefers -=a,+=b" in done.stderr) == (2, True)
    done = call(
        "pairs",
        "signs.jsonl",
        *judge[:2],
        "-j",
        judge_directory(),
        "--given",
        "plain",
        "--prefers=-=a,+=b",
        "-o",
        "p.jsonl",
    )
    assert done.exit_code == 0, done.stderr
    assert read_rows(place / "p.jsonl")[0]["human"] == 1.0


def test_numbers_without_a_meaning_are_named_with_file_and_row_and_column_once(place):
    write_rows(
        place / "numbers.jsonl",
        [{"question": "Q", "output_a": "x", "output_b": "y", "better": n} for n in (1, 2)],
    )
    given = ("--given", "plain", "--field", "human=better")
    done = call("pairs", "numbers.jsonl", "-m", "clarity.yaml", "-j", "no-such-judge", *given, "-o", "p.jsonl")
    assert (done.exit_code, "numbers.jsonl, row 2: 'better' holds preferences beyond 0 to 1" in done.stderr) == (
        2,
        True,
    )
    assert "--prefers 1=a,2=b,0=tie" in done.stderr
    done = call("pairs", "numbers.jsonl", *JUDGED, *given, "--prefers", "1=a,2=b", "-o", "p.jsonl")
    assert done.exit_code == 0, done.stderr
    assert [row["human"] for row in read_rows(place / "p.jsonl")] == [1.0, 0.0]
    wrong = call("rank", "p.jsonl", "--human", "better")
    assert (wrong.exit_code, wrong.stderr.count("Say what they mean")) == (2, 1)


def test_a_mapped_column_of_plain_pairs_that_is_nowhere_is_refused(place):
    given = ("--given", "plain", "--field", "output_a=left", "--field", "output_b=right", "--field", "human=lable")
    done = call("pairs", "wide.jsonl", "-m", "clarity.yaml", "-j", "no-such-judge", *given, "-o", "p.jsonl")
    assert (done.exit_code, "'human' is mapped to 'lable', and no row has such a column" in done.stderr) == (2, True)


@pytest.mark.parametrize("verb", ["rank", "estimate", "meta-eval", "calibrate"])
def test_a_rating_of_a_pair_is_none_of_each_side(place, verb):
    rows = [{"question": f"Q{n}", "a": f"It is {n}.", "b": f"No {n}.", "winner_model_a": n % 2} for n in range(6)]
    write_rows(place / "arena.jsonl", rows)
    done = call("score", "arena.jsonl", *JUDGED, "--system-columns", "a", "b", "-o", "s.jsonl")
    assert done.exit_code == 0, done.stderr
    more = ("-o", "c.yaml", "--method", "isotonic") if verb == "calibrate" else ()
    told = call(verb, "s.jsonl", "--human", "winner_model_a", "--human-scale", "0-1", *more)
    assert told.exit_code == 2
    assert "is the same for all systems of every document: it rates a pair, not each output" in told.stderr


@pytest.mark.parametrize("verb", ["rank", "estimate", "meta-eval", "calibrate"])
def test_two_versions_of_which_people_say_the_same_are_doubted_and_read(place, verb):
    rows = [
        {"doc_id": n, "question": f"Q{n}", "output": f"{n} {system}", "system": system, "rating": n % 3 + 1}
        for n in range(8)
        for system in ("new", "old")
    ]
    write_rows(place / "versions.jsonl", rows)
    done = call("score", "versions.jsonl", *JUDGED, "-o", "s.jsonl")
    assert done.exit_code == 0, done.stderr
    more = ("-o", "c.yaml", "--method", "isotonic") if verb == "calibrate" else ()
    say_once.cache_clear()
    told = call(verb, "s.jsonl", "--human", "rating", *more)
    assert told.exit_code == (2 if verb == "rank" else 0), told.stderr
    assert "is the same for all systems of every document" in told.stderr


def test_a_preference_of_a_second_file_is_named_by_its_own_row(place):
    rows = [{"id": f"p{n}", "question": f"Q{n}", "output_a": f"It is {n}.", "output_b": f"No {n}."} for n in range(4)]
    write_rows(place / "pairs.jsonl", rows)
    done = call("pairs", "pairs.jsonl", *JUDGED, "--given", "plain", "-o", "p.jsonl")
    assert done.exit_code == 0, done.stderr
    said = [{"key": f"p{n}", "better": "sideways" if n == 0 else "a"} for n in (3, 2, 1, 0)]
    write_rows(place / "said.jsonl", said)
    told = call("rank", "p.jsonl", "--human", "better", "--ratings", "said.jsonl", "--on", "id=key")
    assert told.exit_code == 2
    assert "said.jsonl, row 4: better is 'sideways'" in told.stderr
