"""The embedded judge's training data: damage keeps the length, forms are the package's own, the tree mask is exact."""

from __future__ import annotations

import random
import re
import statistics
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy", reason="the training scripts need the test extra")

from scipy.stats import spearmanr

from geval_local.metric import Metric
from geval_local.prompt import render_form, render_steps_prompt
from training import damage, forms, measure, packing, style, tokenizer, traps, wordings, written
from training.candidates import Grader
from training.corpus import TEXT_DIR, Corpus, Document, detokenise, sentences
from training.model import Batch, Nano, Shape
from training.tasks import END_OF_TURN, Leaf, Maker, Tree

NANO = Path(__file__).parents[2] / "geval_local/judges/nano"
SOURCE = sentences(
    "The town of Millbrook opened its new library on Monday. Mayor Ellen Price cut the ribbon before a crowd "
    "of 300 people. The building cost 4 million dollars and took three years to finish. It holds 60,000 books, "
    "a reading room and a small theatre. Most of the money came from a gift by the late painter Robert Hale. "
    "His daughter Anna Hale spoke about his love of old maps. Children from the local school read poems that "
    "they had written. The old library on Main Street will become a museum next spring. Some residents had "
    "asked for a swimming pool instead. The mayor said that a pool may follow when the money is there. "
)
FOREIGN = sentences(
    "Water boils at a lower temperature on high mountains. Captain Reed steered the ship past the northern "
    "cape at night. The orchestra played two symphonies in Vienna. Farmers in the valley expect a poor harvest "
    "after the dry summer. She closed the door and walked down to the river. The committee meets every second "
    "Thursday in the town hall of Bristol. "
)


def pool() -> damage.Pool:
    return damage.Pool(
        damage.names_in(SOURCE),
        damage.numbers_in(SOURCE),
        damage.names_in(FOREIGN),
        FOREIGN,
        ["window", "yellow", "carry", "music"],
    )


@pytest.mark.sweep
@pytest.mark.parametrize("main", ["coherence", "consistency", "fluency", "relevance"])
def test_damage_keeps_the_length(main: str) -> None:
    rng = random.Random(3)
    clean, damaged = [], []
    for _ in range(400):
        good, bad = Grader(SOURCE, pool(), rng).pair(main, rng.choice((0.3, 0.5, 0.75, 1.0)))
        clean.append(sum(map(len, good.sentences)))
        damaged.append(sum(map(len, bad.sentences)))
        assert bad.quality[main] <= good.quality[main]
    assert statistics.mean(damaged) == pytest.approx(statistics.mean(clean), rel=0.06)


def test_a_models_own_text_is_graded_by_what_is_measured_of_it() -> None:
    own = ["The town has built itself a reading room.", "It cost more than anybody had thought."]
    rng = random.Random(2)
    texts = [
        text
        for _ in range(40)
        for text in Grader(SOURCE, pool(), rng, written=[own]).graded("coherence", 5, (0.0,) * 5)
    ]
    found = [text for text in texts if "".join(w.text for w in text.sentences[0]) == own[0].replace(" ", "")]
    assert 25 < len(found) < 90
    flags = [word.flags for text in found[:1] for sentence in text.sentences for word in sentence]
    assert any(flag & damage.NEW_WORD for flag in flags)
    best = max(text.quality["consistency"] for text in texts)
    assert found[0].quality["consistency"] < best - 0.2
    assert found[0].quality["coherence"] > 0.4


def test_a_persons_text_may_have_more_sentences_than_its_source() -> None:
    for seed in range(300):
        found = Grader(SOURCE[:4], pool(), random.Random(seed), FOREIGN).graded("coherence", 3, (0.3, 0.6, 1.0))
        assert all(text.sentences for text in found)


def test_a_models_text_is_cut_into_whole_sentences() -> None:
    text = "Here is a summary:\n\nSure, it is short.\n1. The fire began at night.\n2. 1990 was worse.\n- The owner"
    assert written.clean(text, random.Random(1)) == ["The fire began at night.", "1990 was worse."]
    document = Document("nltk", [f"Sentence {n} of this text has these eight words." for n in range(60)])
    assert len(written.shown(document).split()) == 162


def test_summaries_by_the_model_are_met_with_their_own_source() -> None:
    document = Document("nltk", SOURCE)
    rest = [Document("nltk", [s.replace("library", "harbour") for s in SOURCE]) for _ in range(3)]
    own = [["A town in the hills wanted what it could not pay for."]]
    maker = Maker(Corpus([document, *rest], [], []), random.Random(3), written={document.key: own})
    met = 0
    for _ in range(30):
        shared, found, _ = maker.summary("coherence") or ({}, [], "")
        texts = [" ".join(w.text for w in s) for c in found for s in c.sentences]
        if any(text.startswith("A town in the hills") for text in texts):
            assert "harbour" not in shared["source"]
            met += 1
    assert met > 8


def test_damage_is_graded() -> None:
    rng = random.Random(4)
    found = {
        level: statistics.mean(
            Grader(SOURCE, pool(), rng).pair("fluency", level)[1].quality["fluency"] for _ in range(20)
        )
        for level in (0.25, 0.5, 1.0)
    }
    assert found[0.25] > found[0.5] > found[1.0]


def test_each_criterion_has_faults_of_its_own() -> None:
    source = measure.Source(SOURCE)
    clean, changed = SOURCE[:3], [SOURCE[0].replace("library", "harbour"), *SOURCE[1:3]]
    twice = [*SOURCE[:2], SOURCE[1]]
    of = {"clean": source.measure(clean), "changed": source.measure(changed), "twice": source.measure(twice)}
    assert measure.consistency(of["changed"]) < measure.consistency(of["clean"])
    assert measure.coherence(of["changed"]) == pytest.approx(measure.coherence(of["clean"]), abs=0.02)
    assert measure.coherence(of["twice"]) < measure.coherence(of["clean"]) - 0.2
    assert measure.consistency(of["twice"]) == pytest.approx(measure.consistency(of["clean"]), abs=0.02)
    assert measure.relevance(of["changed"]) > measure.relevance(of["clean"]) - 0.06  # a central word is lost
    assert measure.relevance(of["twice"]) < measure.relevance(of["clean"]) - 0.1
    rng = random.Random(5)
    found = []
    for _ in range(60):  # a judge that gives one answer to every question must be wrong somewhere
        texts = Grader(SOURCE, pool(), rng).graded(rng.choice(("coherence", "consistency")), 13)
        values = [[text.quality[name] for text in texts] for name in ("coherence", "consistency")]
        found.append(spearmanr(*values).statistic)
    assert statistics.mean(found) < 0.3


def test_leaving_a_phrase_out_says_nothing_new() -> None:
    source, rng = measure.Source(SOURCE), random.Random(4)
    shorter = 0
    for sentence in SOURCE:
        words = [w.text for w in damage.parse(sentence)]
        left = [w.text for w in damage.abridged(damage.parse(sentence), rng)]
        rest = iter(words)
        assert all(word in rest for word in left)  # in their order
        assert source.measure([" ".join(left)]).novel_pairs == 0
        shorter += len(left) < len(words)
    assert shorter >= 3
    turned = "The library opened its new town of Millbrook on Monday."
    assert source.measure([turned]).novel_pairs > 0


def test_versions_of_a_text_are_clean_and_those_that_lost_phrases_have_new_neighbours() -> None:
    source = measure.Source(SOURCE)
    assert source.new_neighbours(SOURCE[2:5]) == 0
    assert source.new_neighbours(["The town of Millbrook opened on Monday."]) == pytest.approx(1 / 6)
    # a pair with a word that the source does not know is none
    assert source.new_neighbours(["Aliens of Millbrook opened on Monday."]) == pytest.approx(1 / 5)
    texts = Grader(SOURCE, pool(), random.Random(2)).versions(30)
    assert len(texts) == 30
    damaged = damage.ERROR | damage.FOREIGN | damage.UNSUPPORTED | damage.REPEATED
    assert not any(word.flags & damaged for text in texts for sentence in text.sentences for word in sentence)
    new = [source.new_neighbours([" ".join(w.text for w in sentence) for sentence in t.sentences]) for t in texts]
    assert min(new) == 0 < 0.05 < max(new) < 0.3


def test_a_token_that_opens_two_labels_stands_for_the_one_that_is_meant() -> None:
    judged = forms.scale("Strongly disagree/Disagree/Neutral/Agree/Strongly agree")
    code = tokenizer.load(NANO / "tokenizer.json")
    for quality, wanted in ((0.98, 4.0), (0.02, 0.0)):
        leaf = Leaf("\n\n", "A summary.", [0] * 10, "\n\n- Coherence:", judged.target(quality), quality)
        packed = packing.pack(Tree("coherence", "A text.", [leaf], judged), code, random.Random(1), 0.0)
        assert packed is not None
        row = packed.ranks[0]
        assert max(zip(packed.labels[row][3], packed.values[row], strict=True))[1] == pytest.approx(wanted, abs=0.05)


def test_flags_follow_the_characters() -> None:
    text, flags = style.render(
        [[damage.Word("Hello,"), damage.Word("wrold", damage.ERROR)], [damage.Word("It's")]],
        style.Style(tokenised=True, lower=True),
    )
    assert text == "Hello , wrold It 's"
    assert len(flags) == len(text)
    assert {text[i] for i, flag in enumerate(flags) if flag} == set(" wrold")


def test_detokenise() -> None:
    assert detokenise("He did n't go ( he said ) , did he ?") == "He didn't go (he said), did he?"


@pytest.mark.parametrize("name", [concept.name for concept in wordings.CONCEPTS])
def test_forms_are_the_packages_own(name: str) -> None:
    concept = wordings.BY_NAME[name]
    form = forms.compose(concept, random.Random(8), plain=True)
    parts = re.fullmatch(
        r"(?s)(.+?)\n\nEvaluation Criteria:\n\n(.+?) \((.+?)\) - (.+?)(?:\n\nEvaluation Steps:\n\n(.+?))?\n\n",
        form.head,
    )
    assert parts
    steps = [re.sub(r"^\d+\. ", "", line) for line in parts[5].split("\n")] if parts[5] else None
    criteria, *bands = parts[4].split("\n- ")
    rubric = dict(band.split(": ", 1) for band in bands) if len(bands) == len(form.scale.labels) else None
    if bands and not rubric:
        pytest.skip("a rubric of some labels only has no counterpart in a metric")
    metric = Metric(
        name="x",
        title=parts[2],
        introduction=parts[1],
        criteria=criteria,
        scale=parts[3],
        steps=tuple(steps) if steps else None,
        rubric=rubric,
        fields={role: form.headings[role] for role in concept.fields},
    )
    text = form.head
    for number, role in enumerate(concept.fields):
        text += ("\n\n" if number else "") + form.field(role) + f"<{role}>"
    assert render_form(metric, {role: f"<{role}>" for role in concept.fields}).text == text + form.tail
    if steps:
        tree, asked = Maker.steps(name, form, ("<user>", "<judge>")), render_steps_prompt(metric, instruct=True)
        start, stop = tree.steps
        assert tree.trunk[:start] == f"<user>{asked.question}<judge>{asked.cue}"
        assert f"1.{tree.trunk[start:stop]}" == parts[5] + END_OF_TURN


@pytest.mark.parametrize(("concept", "copies"), [("consistency", True), ("factual", False)])
def test_whether_all_is_supported_is_not_asked_of_a_copy(
    concept: str, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, copied = [], traps.copied
    monkeypatch.setattr(traps, "copied", lambda *given: drawn.append(given) or copied(*given))
    documents = [Document("nltk", SOURCE), *(Document("nltk", [*SOURCE[n:], *SOURCE[:n]]) for n in range(1, 4))]
    maker = Maker(Corpus(documents, [], []), random.Random(4), words=(50, 60), copies=1.0)
    trees = [tree for _ in range(20) if (tree := maker.tree(concept)) and tree.leaves]
    assert len(trees) > 5
    assert len(drawn) == (len(trees) if copies else 0)


def test_tree_equals_one_by_one() -> None:
    torch.manual_seed(0)
    net = Nano(Shape(vocabulary=97, hidden=32, layers=3, heads=2, intermediate=48)).eval()
    trunks = torch.randint(0, 97, (2, 11))
    leaves = torch.randint(0, 97, (2, 3, 7))
    lengths = torch.tensor([11, 6])
    with torch.no_grad():
        packed = net(Batch(trunks, leaves, lengths), torch.float32)[2 * 11 :].view(2, 3, 7, -1)
        for i in range(2):
            for j in range(3):
                line = torch.cat((trunks[i, : lengths[i]], leaves[i, j]))
                alone = net(Batch(line[None, :-1], line[None, None, -1:], torch.tensor([len(line) - 1])), torch.float32)
                assert torch.allclose(alone[-1], packed[i, j, -1], atol=1e-5)


#: Words that no family has.
ANY = ["lantern", "harbour", "walk", "quickly", "stone", "purple"]


def test_scales_are_made_of_words_in_order() -> None:
    rng = random.Random(1)
    found, families = [forms.made(rng, ANY) for _ in range(2000)], wordings.GRADES + wordings.DEGREES
    assert len({one.name for one in found}) > 600
    assert {len(one.labels) for one in found} == {2, 3, 4, 5}
    listed = [[label.lower() for label in labels] for labels in wordings.USUAL]
    usual = alone = mixed = unknown = chance = 0
    for one in found:
        assert forms.scale(one.name).labels in {one.labels, one.labels[::-1]}
        assert one.shown == tuple(one.name.split("/"))
        words = [label.lower() for label in one.labels]
        assert len(set(words)) == len(words)
        if words in listed:
            usual += 1
            continue
        # every family that has a word says from which places it can come: all in order, from the first to the last
        places = [
            {n for tiers in families for n, tier in enumerate(tiers) if word in map(str.lower, tier)} for word in words
        ]
        if not all(places):
            unknown += 1
            continue
        reached, ordered = -1, 0 in places[0] and 4 in places[-1]
        for possible in places:
            ordered = ordered and max(possible) > reached
            reached = min((place for place in possible if place > reached), default=4)
        chance += not ordered
        in_one = any(set(words) <= {w.lower() for tier in tiers for w in tier} for tiers in families)
        alone, mixed = alone + in_one, mixed + (not in_one)
    assert usual > 800
    assert alone > 150
    assert mixed > 10
    assert unknown > 100
    assert chance < 5  # any words, which all happen to be some family's
    assert any(len(one.labels) > 2 and one.shown != one.labels for one in found)


def test_listed_scales_are_drawn_by_their_weights() -> None:
    rng, weights = random.Random(1), [0.0] * len(wordings.USUAL)
    weights[2] = 1.0
    found = [[label.lower() for label in forms.made(rng, ANY, weights).labels] for _ in range(200)]
    assert sum(words == wordings.USUAL[2] for words in found) > 70
    concept = wordings.BY_NAME["fluency"]
    drawn = [forms.compose(concept, rng, worded=1.0, words=ANY, usual=weights).scale for _ in range(100)]
    assert sum([label.lower() for label in one.labels] == wordings.USUAL[2] for one in drawn) > 30


def test_the_benchmarks_own_words_are_in_no_scale() -> None:
    listed = [scale.split("/") for concept in wordings.CONCEPTS for scale in concept.scales]
    families = [*wordings.GRADES, *wordings.DEGREES, wordings.USUAL, listed]
    known = {word for tiers in families for tier in tiers for label in tier for word in label.lower().split()}
    assert len(known) > 300
    assert known.isdisjoint(wordings.KEPT_OUT)
    text = Document("made", ["The polished silver spoon stood beside broken lanterns."])
    assert set(Maker(Corpus([text], [], []), random.Random(3)).common) == {"spoon", "stood", "beside"}
    asked = (Path(__file__).parents[2] / "benchmarks" / "label_mass.py").read_text()
    assert all(f'"{word.capitalize()}":' in asked for word in wordings.KEPT_OUT)


def test_soft_targets_expect_the_quality() -> None:
    for name in ("1-3", "1-5", "0-10", "Yes/No", "0-1"):
        scale = forms.scale(name)
        values = [
            sum(scale.target(q)[label] * v for label, v in zip(scale.labels, scale.values, strict=True))
            for q in (0.0, 0.5, 1.0)
        ]
        assert values[0] < values[1] < values[2]


def test_tokenizer_has_single_digits() -> None:
    code = tokenizer.load(NANO / "tokenizer.json")
    assert [
        len(code.encode(f"- Coherence: {n}", add_special_tokens=False))
        - len(code.encode("- Coherence:", add_special_tokens=False))
        for n in range(10)
    ] == [1] * 10
    assert code.decode(code.encode("Año 2024:\n\n\tnaïve — 12.5 %").ids) == "año 2024:\n\n\tnaïve — 12.5 %"
    written, tokenised = "Ann's goals, weren't they? \"No\".", "ann 's goals , were n't they ? \" no\" ."
    assert code.encode(written).ids == code.encode(tokenised).ids


@pytest.mark.skipif(not TEXT_DIR.exists(), reason="../shared/text is absent")
def test_corpus_is_there() -> None:
    assert (TEXT_DIR / "sgd.txt.gz").exists()
