"""The adapter's training: it computes what peft loads, reads the package's chat form, and grades by a teacher."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytest.importorskip("scipy", reason="the training scripts need the test extra")

from geval_local.judge.steps import unfit
from geval_local.metric import Metric
from geval_local.prompt import render_form
from training import (
    average,
    export,
    forms,
    losses,
    packing,
    scoring,
    smol,
    supply,
    teacher,
    traps,
    upper,
    wordings,
    written,
)
from training.candidates import Candidate
from training.damage import parse
from training.model import Batch, Shape
from training.packing import Tensors
from training.recipes import RECIPES, Adapting
from training.smol import Adapter, Smol
from training.tasks import END_OF_TURN, Leaf, Question, Tree

TINY = Shape(101, hidden=24, layers=3, heads=6, intermediate=40, theta=10000.0, shared=3)


def tiny(first: int = 1) -> Smol:
    torch.manual_seed(1)
    net = Smol(Adapter(first=first, rank=2), TINY).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return export.rounded(net)


def as_transformers(net: Smol) -> LlamaForCausalLM:
    shape = net.shape
    trunk = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads // shape.shared,
            rms_norm_eps=shape.epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
            tie_word_embeddings=True,
        )
    )
    own = {export.tensor_name(n): p for n, p in net.state_dict().items() if "lora" not in n and "flags" not in n}
    assert not trunk.load_state_dict(own, strict=False).missing_keys[1:]
    return trunk.eval()


def test_the_mean_of_adapters_is_that_of_their_products():
    torch.manual_seed(2)
    narrow, name = torch.randn(2, 24), "layers.1.q_proj.lora_{}.weight"
    wide = [torch.randn(30, 2), torch.randn(30, 2)]
    adapters = [{name.format("A"): narrow, name.format("B"): own} for own in wide]
    found, kept = average.mean(adapters, [0.25, 0.75])
    assert kept == pytest.approx(1.0, abs=1e-5)  # both lie in the same two directions
    product = found[name.format("B")].float() @ found[name.format("A")].float()
    torch.testing.assert_close(product, (0.25 * wide[0] + 0.75 * wide[1]) @ narrow, atol=0.02, rtol=0.01)


def test_an_adapter_of_fewer_layers_adds_nothing_to_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, first in (("wide", 1), ("narrow", 2)):
        export.write_adapter(tiny(first), Path(name))
    monkeypatch.setattr("sys.argv", ["average", ".4", "narrow", ".6", "wide", "--to", "new"])
    average.main()
    assert Adapter.of(tmp_path / "new") == Adapter(first=1, rank=2)
    new, wide = (dict(tiny().load_adapter(tmp_path / name).named_parameters()) for name in ("new", "wide"))
    name = "layers.1.q_proj.lora_{}"
    product, whole = (own[name.format("B")] @ own[name.format("A")] for own in (new, wide))
    torch.testing.assert_close(product, 0.6 * whole, atol=2e-3, rtol=1e-2)


def test_an_average_is_written_to_a_new_folder_only(tmp_path, monkeypatch, capsys):
    export.write_adapter(tiny(), tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    kept = (tmp_path / "one" / "adapter_model.safetensors").read_bytes()
    for parts, to, told in (
        ([".5", "one", ".5", "one"], "one", "exists"),
        (["1", "none"], "new", "holds no adapter"),
        (["half", "one"], "new", "one weight before each folder: "),
        ([".5", "one", "0", "one"], "new", "one weight other than 0"),
        ([".5", "one", "nan", "one"], "new", "one weight other than 0"),
    ):
        monkeypatch.setattr("sys.argv", ["average", *parts, "--to", to])
        with pytest.raises(SystemExit):
            average.main()
        assert told in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "one" / "adapter_model.safetensors").read_bytes() == kept
    monkeypatch.setattr("sys.argv", ["average", "1.5", "one", "-.5", "one", "--to", "new"])
    average.main()
    maps = [dict(tiny().load_adapter(tmp_path / name).named_parameters()) for name in ("one", "new")]
    for name in (name for name in maps[0] if name.endswith("lora_A")):
        one, new = (own[name.replace("lora_A", "lora_B")] @ own[name] for own in maps)
        torch.testing.assert_close(new, one, atol=2e-3, rtol=1e-2)


def test_peft_computes_the_same(tmp_path):
    peft = pytest.importorskip("peft")
    net = tiny()
    export.write_adapter(net, tmp_path)
    loaded = peft.PeftModel.from_pretrained(as_transformers(net), str(tmp_path))
    ids = torch.randint(0, 101, (1, 20))
    batch = Batch(ids[:, :12], ids[:, 12:].view(1, 1, 8), torch.tensor([12]), torch.tensor([[8]]))
    again = tiny()
    for name, parameter in again.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter)
    again.load_adapter(tmp_path)
    assert Adapter.of(tmp_path) == net.adapter
    with pytest.raises(SystemExit, match="holds no adapter"):
        Adapter.of(tmp_path / "none")
    with torch.no_grad():
        assert torch.equal(again.logits(again(batch)), net.logits(net(batch)))
        assert torch.allclose(net.logits(net(batch)), loaded(ids).logits[0], atol=1e-4)
    assert (
        max(
            p.dtype.itemsize
            for p in __import__("safetensors.torch").torch.load_file(tmp_path / "adapter_model.safetensors").values()
        )
        == 2
    )


def test_labels_that_begin_alike_may_mean_nearly_the_same():
    scale = forms.Scale("any", ("Yes form", "No form", "Yes text"), (0.0, 1.0, 2.0))
    target = dict(zip(scale.labels, (0.25 + 1e-14, 0.5, 0.25), strict=True))  # "Yes" means what "No" means, about
    leaves = [Leaf("", "text", [0] * 4, " cue", target, own) for own in (0.2, 0.8)]
    packed = packing.pack(Tree("coherence", "form", leaves, scale), words(), random.Random(1), 0.0)
    assert packed is not None
    means = packed.values[packed.ranks[0]]
    assert 0.0 < abs(means[0] - means[1]) < 1e-9
    assert packing.collate([packed], random.Random(1)).label_values.abs().max() < 3.0


def test_several_trees_together_are_worth_what_each_is_worth_alone():
    net, code, rng, trees = tiny(), words(), random.Random(3), []
    for count, scale in ((4, forms.scale("1-5")), (3, forms.scale("0-10")), (0, forms.scale("1-5"))):
        leaves = [
            Leaf("", "text form"[: 4 + 5 * (n % 2)], [0] * 9, " cue", scale.target(0.2 * n), 0.2 * n)
            for n in range(count)
        ]
        tree = Tree("coherence", "form text" + " cue" * count, leaves, scale, steps=(0, 0 if leaves else 9))
        trees.append(packing.pack(tree, code, rng, 0.0))
    weights = losses.Weights(flags=0.0, counts=0.0)
    data = [packing.collate(part, rng) for part in (trees, *([tree] for tree in trees))]
    assert len(data[0].steps_at)
    found = [losses.losses(net, part, weights, torch.float32, 0.0) for part in data]
    for name in ("label", "rank"):
        mean = sum(part.get(name, 0.0) for _, part in found[1:]) / len(trees)
        assert found[0][1][name] == pytest.approx(mean, rel=1e-3)
        assert mean > 0.01
    together = packing.to(data[0], torch.device("cpu"))
    torch.testing.assert_close(losses.losses(net, together, weights, torch.float32, 0.0)[0], found[0][0])


def test_padding_and_siblings_change_nothing():
    net = tiny()
    trunk, leaves = torch.randint(0, 101, (1, 9)), torch.randint(0, 101, (1, 3, 7))
    lengths = torch.tensor([[7, 2, 5]])
    with torch.no_grad():
        packed = net(Batch(trunk, leaves, torch.tensor([9]), lengths))[9:].view(3, 7, -1)
        for n, length in enumerate(lengths[0].tolist()):
            one = net(Batch(trunk, leaves[:, n : n + 1, :length], torch.tensor([9]), lengths[:, n : n + 1]))
            # Weights this large multiply rounding: 3e-5 on some processors; a neighbour that is seen makes tenths.
            assert torch.allclose(one[-1], packed[n, length - 1], atol=2e-4)


def test_states_below_the_adapter_may_be_given_and_the_frozen_trunk_has_no_maps():
    net = tiny()
    batch = Batch(
        torch.randint(0, 101, (1, 9)), torch.randint(0, 101, (1, 3, 7)), *map(torch.tensor, ([9], [[7, 2, 5]]))
    )
    with torch.no_grad():
        whole, frozen = net(batch), net.frozen(batch)
        batch.states = net.below(batch)
        assert torch.equal(net(batch), whole)
        assert torch.equal(net.frozen(batch), frozen)
        assert not torch.allclose(whole[batch.real()], frozen, atol=1e-2)
        for name, parameter in net.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
        assert torch.allclose(net(batch)[batch.real()], frozen, atol=1e-5)


def test_only_maps_and_auxiliary_heads_are_trained():
    trained = {name for name, p in tiny().named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith(("flags.", "counts.")) for name in trained)
    assert not any(name.startswith("layers.0.") for name in trained)


@pytest.mark.parametrize("name", ["coherence", "fluency", "groundedness", "tone"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_chat_form_is_the_packages_own(name, seed):
    concept = wordings.BY_NAME[name]
    form = forms.compose(concept, random.Random(seed), plain=True)
    labels = dict(zip(form.scale.labels, form.scale.values, strict=True))
    metric = Metric(
        name="x",
        title=form.cue[2:-1],
        criteria="any",
        scale={label: labels[label] for label in form.scale.shown},
        fields={role: form.headings[role] for role in concept.fields},
    )
    prompt = render_form(metric, dict.fromkeys(concept.fields, "text"))
    assert (prompt.question + "<end>" + prompt.cue).endswith("text" + form.asked("<end>"))


def words() -> Tokenizer:
    """A tokenizer like SmolLM2's where it counts: a space before a digit is a token of its own."""
    known = ["<unk>", END_OF_TURN, *"0123456789", " ", "Yes", "No", "form", "text", "cue"]
    code = Tokenizer(models.WordLevel({word: n for n, word in enumerate(known)}, unk_token="<unk>"))
    code.pre_tokenizer = pre_tokenizers.Split(__import__("tokenizers").Regex(r"\d| |\w+"), "isolated")
    return code


@pytest.mark.parametrize("name", ["1-5", "0-10", "Yes/No", "0-100"])
def test_targets_along_every_way_make_up_the_labels_chances(name):
    code, scale = words(), forms.scale(name)
    target = scale.target(0.93)
    tree = Tree("coherence", "form", [Leaf("text", "text", [0] * 4, "cue", target, 0.93)] * 60, scale)
    packed = packing.pack(tree, code, random.Random(2), 0.0)
    assert packed is not None
    told: dict[tuple[int, int], dict[int, float]] = {}
    for leaf, at, ids, chances in packed.labels:
        told[leaf, at] = dict(zip(ids, chances, strict=True))
        assert sum(chances) == pytest.approx(1)
    checked = set()
    for label, chance in target.items():
        path = code.encode(" " + label).ids
        for leaf, own in enumerate(packed.leaves):
            first = len(own) - 1 - next(n for n in range(9) if (leaf, len(own) - 1 - n - 1) not in told)
            if own[first + 1 : first + len(path)] != path[:-1]:
                continue  # this leaf went another way
            product = 1.0
            for depth, token in enumerate(path):
                product *= told[leaf, first + depth][token]
            if (leaf, first + len(path)) in told and own[first + len(path)] == path[-1]:
                product *= told[leaf, first + len(path)][code.token_to_id(END_OF_TURN)]
            elif any(o != label and o.startswith(label) for o in target):
                continue
            assert product == pytest.approx(chance, rel=1e-6)
            checked.add(label)
            break
    assert len(checked) >= 2


def test_a_form_with_several_questions_orders_each_by_itself():
    code, scale = words(), forms.scale("1-5")
    leaves = []
    for number in range(3):
        more = [Question(" text", "fluency", 1.0 - 0.4 * number, scale.target(1.0 - 0.4 * number))]
        leaves.append(Leaf("", "form", [0] * 4, " cue", scale.target(0.4 * number), 0.4 * number, False, more))
    packed = packing.pack(Tree("coherence", "form", leaves, scale), code, random.Random(1), 0.0)
    assert packed is not None
    assert packed.leaves == [code.encode("form cue  text ").ids] * 3  # no label between the questions
    data = packing.collate([packed], random.Random(1))
    expected = (data.label_target * data.label_values).sum(-1)
    assert len(data.pair) == 6
    assert all(expected[better] > expected[worse] for better, worse in data.pair.tolist())
    places = data.label_at[data.pair] % packing.collate_trees([packed]).leaves.shape[2]
    assert all(one == two for one, two in places.tolist())


def test_of_a_long_tree_as_many_candidates_stay_as_fit():
    code, scale = words(), forms.scale("1-5")
    leaves = [Leaf("", "text " * n, [0] * 5 * n, " cue", scale.target(0.5), 0.1 * n) for n in range(1, 9)]
    tree = Tree("coherence", "form " * 40, leaves, scale)
    whole = packing.fit(tree, code, random.Random(1), 1000, 3)
    assert whole is not None
    assert whole[0] is tree
    short = packing.fit(tree, code, random.Random(1), 150, 3)
    assert short is not None
    kept, packed = short
    assert 3 <= len(kept.leaves) == len(packed.leaves) < 8
    assert len(packed.trunk) + sum(map(len, packed.leaves)) <= 150
    assert all(leaf in leaves for leaf in kept.leaves)
    assert packing.fit(tree, code, random.Random(1), 100, 3) is None


def test_a_form_is_widened_by_criteria_and_loses_its_steps():
    rng = random.Random(3)
    form = next(f for _ in range(50) if (f := forms.compose(wordings.BY_NAME["coherence"], rng)).steps[1])
    wide, cues = forms.widened(form, [wordings.BY_NAME["fluency"], wordings.BY_NAME["relevance"]], rng)
    assert wordings.STEPS_LINE not in wide.head
    assert wide.steps == (0, 0)
    assert [cue.strip(" -:\r\n") in wide.head for cue in cues] == [True, True]
    assert wide.tail == form.tail


def test_scores_are_the_models_own_chances():
    net, code, scale = tiny(), words(), forms.scale("0-10")
    rows = ["form text cue", "form text text cue"]
    trunk = as_transformers(net)
    for layer, own in zip(trunk.model.layers, net.layers, strict=True):
        for name in export.MAPS:
            part = layer.mlp if hasattr(layer.mlp, name) else layer.self_attn
            if hasattr(map_ := getattr(own, name), "lora_A"):
                getattr(part, name).weight.data += map_.lora_B.data @ map_.lora_A.data * map_.scale
    for row, (value, mass) in zip(rows, scoring.score(net, code, rows, scale), strict=True):
        chances = {}
        for label in scale.labels:
            ids, product = code.encode(row).ids, 1.0
            for token in code.encode(" " + label).ids:
                after = trunk(torch.tensor([ids])).logits[0, -1].softmax(-1)
                product, ids = product * float(after[token].detach()), [*ids, token]
            chances[label] = product
        chances["1"] -= chances["10"]
        assert mass == pytest.approx(sum(chances.values()), rel=1e-4)
        assert value == pytest.approx(sum(int(k) * v for k, v in chances.items()) / mass, rel=1e-4)


def graded(concept: str = "relevance") -> tuple[Tree, Tree]:
    """A tree of six candidates, of which the last is a trap, before and after the teacher."""
    scale = forms.scale("1-5")
    leaves = [
        Leaf("text", "text " * (n + 1), [0] * 5 * (n + 1), "cue", scale.target(0.5), 0.4 + 0.01 * n, n == 5)
        for n in range(6)
    ]
    tree = Tree(concept, "form", leaves, scale, measured=True)
    read = packing.Packed([], [], [], [], [], [], [], [])
    read.told = [[float("nan"), *[-9.0 + n] * (n + 1)] for n in range(len(leaves))]
    told = teacher.Wanted(form=read, alike=[0.02 * len(leaf.body) for leaf in leaves])
    return tree, teacher.grade(tree, told, words())


def test_the_teacher_follows_its_parts_and_fills_the_scale():
    before, after = graded()
    values = [leaf.quality for leaf in after.leaves[:5]]
    assert values == sorted(values)
    assert values[4] - values[0] > 0.5
    assert np.mean(values) == pytest.approx(np.mean([leaf.quality for leaf in before.leaves[:5]]), abs=1e-6)
    assert all(leaf.target == after.scale.target(leaf.quality) for leaf in after.leaves[:5])


def test_coherence_does_not_follow_new_words_but_another_text_stays_what_it_is():
    rng = np.random.default_rng(1)
    new = np.array([*rng.uniform(0, 0.3, 40), 1.0])
    worth = np.array([*(-4 * new[:40] + rng.normal(0, 0.3, 40)), -4.0])
    freed = teacher.freed(worth, new)
    near = slice(0, 40)
    assert np.corrcoef(new[near], worth[near])[0, 1] < -0.6
    assert abs(np.corrcoef(new[near], freed[near])[0, 1]) < 0.01
    assert freed[40] < freed[near].min() - 1
    assert np.array_equal(teacher.freed(worth, np.zeros(41)), worth)


def test_the_teacher_leaves_traps_and_other_concepts_alone():
    before, after = graded()
    assert after.leaves[5] == before.leaves[5]
    before, after = graded("engagingness")
    assert after == before


def test_short_forms_that_seldom_fit_are_drawn_as_often_as_the_others():
    code, scale, rng = words(), forms.scale("1-5"), random.Random(1)

    def tree(name: str) -> Tree:
        long = name == "coherence" and rng.random() < 0.8
        qualities = (0.2, 0.9, 0.4, 0.3)
        leaves = [Leaf("", "text", [0] * 4, " cue", scale.target(own), own, own > 0.5) for own in qualities]
        return Tree(name, "form " * (upper.LONGEST_SHORT if long else 3), leaves, scale)

    maker = SimpleNamespace(rng=rng, weights={"coherence": 1.0, "tone": 1.0}, tree=tree)
    recipe = SimpleNamespace(tokenizer=lambda: code)
    drawn = [upper.short(recipe, maker) for _ in range(200)]
    assert sum(kept.concept == "coherence" for kept, _ in drawn) == pytest.approx(100, abs=25)
    assert {len(kept.leaves) for kept, _ in drawn} == {len(packed.leaves) for _, packed in drawn} == {upper.TEXTS}
    # the best one that is no trap, then the trap
    assert all([leaf.quality for leaf in kept.leaves[:2]] == [0.4, 0.9] for kept, _ in drawn)
    assert all(len(packed.trunk) + sum(map(len, packed.leaves)) <= upper.LONGEST_SHORT for _, packed in drawn)
    maker.tree = lambda name: Tree(name, "1. Read the text.", [], scale)  # a list of steps
    assert upper.short(recipe, maker)[0].leaves == []
    maker.tree = lambda name: None
    assert upper.short(recipe, maker) is None  # it does not wait for ever


def answered(monkeypatch, first: int = -1) -> tuple[Smol, Tree, packing.Packed, upper.Rows]:
    """Four texts, of which the last is a trap, and what a network says of them."""
    monkeypatch.setattr(upper, "READ", 0.0)
    code, scale = words(), forms.scale("1-5")
    texts = ("Yes No form text cue", "Yes No cue", "No form text", "Yes text cue")
    worth = (0.5, 0.5, 0.5, 0.1)
    leaves = [
        Leaf("", text, [0] * len(text), " cue", scale.target(own), own, own < 0.5)
        for text, own in zip(texts, worth, strict=True)
    ]
    tree = Tree("coherence", "form " * 9, leaves, scale, source="Yes No form text cue.")
    packed, net = packing.pack(tree, code, random.Random(1), 0.0), tiny()
    assert packed is not None
    return net, tree, packed, upper.rows(tree, packed, net, torch.float32, first=first)


def own_answers(net: Smol, packed: packing.Packed, found: upper.Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the network's own chances of the labels and their mean, in one pass over the whole tree."""
    batch = packing.collate_trees([packed])
    with torch.no_grad():
        hidden = net(batch)
    width = batch.leaves.shape[2]
    at = [len(packed.trunk) + leaf * width + place for leaf, place, _, _ in packed.labels]
    chances = net.logits(hidden[at]).gather(1, found.labels).masked_fill(~found.real, -torch.inf).softmax(-1)
    return hidden[at], (chances * found.values).sum(-1)


@pytest.mark.parametrize("first", [-1, 1])
def test_the_upper_layers_at_labels_are_the_networks(monkeypatch, first):
    net, _, packed, found = answered(monkeypatch, first=first)
    with torch.no_grad():
        torch.testing.assert_close(
            upper.final(net, found, torch.float32, first), own_answers(net, packed, found)[0], atol=0.02, rtol=0.02
        )


def test_a_scale_that_cannot_be_read_is_taught_by_the_trees_own_labels(monkeypatch):
    net, tree, packed, read = answered(monkeypatch)
    assert not read.reading
    assert upper.rows(tree, packed, net, torch.float32, reading=True).reading
    own = own_answers(net, packed, read)[1]
    *kept, trap = (row for row, valued in enumerate(read.valued) if valued)
    torch.testing.assert_close(read.expected[kept], own[kept], atol=0.01, rtol=0.0)
    assert read.wanted[trap, : len(packed.labels[trap][2])].tolist() == pytest.approx(packed.labels[trap][3])
    assert read.expected[trap] < 0.2 < own[trap]
    assert read.wanted.sum(-1).tolist() == pytest.approx([1.0] * len(read.at))
    assert not read.wanted.masked_select(~read.real).any()
    monkeypatch.setattr(upper, "READ", 1.0)
    found = upper.rows(tree, packed, net, torch.float32)
    assert found.reading
    assert not found.valued.any()
    for row, (_, _, ids, target) in enumerate(packed.labels):
        assert found.wanted[row, : len(ids)].tolist() == pytest.approx(target)

    def mass() -> float:
        with torch.no_grad():
            chances = (
                net.logits(upper.final(net, found, torch.float32)).softmax(-1).gather(1, found.labels) * found.real
            )
        return float(chances.sum(-1).mean())

    first = mass()
    *_, means = upper.fit(net.requires_grad_(False), [found], 0.0, 200, 0.01, random.Random(1), torch.float32)
    net.load_state_dict(means, strict=False)
    assert first < 0.1
    assert mass() > 1.8 * first  # of so small a network the logits differ little, whatever it learns


def test_what_a_question_loses_does_not_shrink_with_the_tokens_of_its_labels():
    code, net = words(), tiny()
    scale = forms.scale("Yes form/Yes text/No form")
    leaves = [Leaf("", "text", [0] * 4, " cue", scale.target(own), own, False) for own in (0.2, 0.9)]
    packed = packing.pack(Tree("coherence", "form " * 9, leaves, scale), code, random.Random(1), 0.0)
    assert packed is not None
    found = upper.rows(Tree("coherence", "form " * 9, leaves, scale), packed, net, torch.float32, reading=True)
    assert found.questions == len(packed.leaves) < len(found.at)
    with torch.no_grad():
        chances = net.logits(upper.final(net, found, torch.float32)).softmax(-1).gather(1, found.labels) * found.real
    assert found.lost == pytest.approx(-chances.sum(-1).log().sum().item() / 2, rel=0.02)
    upper.loss(net, [found], torch.float32)
    assert found.lost == pytest.approx(-chances.sum(-1).log().sum().item() / 2, rel=0.02)


@pytest.mark.parametrize("size", [20.03, 20.06, 20.09])
def test_no_rounding_makes_the_mass_of_labels_more_than_one(monkeypatch, size):
    net, _, _, found = answered(monkeypatch)
    found.labels, found.real = found.labels[-1:].expand_as(found.labels), found.real[-1:].expand_as(found.real)
    with torch.no_grad():  # the labels have all of the mass, at logits that bfloat16 rounds by some hundredths
        hidden = upper.final(net, found, torch.float32).mean(0)
        net.embed_tokens.weight[found.labels[-1][found.real[-1]]] = size * hidden / hidden.square().sum()
    upper.loss(net, [found], torch.bfloat16)
    assert 0.0 <= found.lost < 0.01


def test_a_list_of_steps_is_taught_token_by_token_after_what_precedes_it():
    code, net = words(), tiny()
    tree = Tree("unseen", "form Yes No form text cue", [], forms.scale("1-5"), (9, 25))
    packed = packing.pack(tree, code, random.Random(1), 0.0)
    assert packed is not None
    found = upper.rows(tree, packed, net, torch.float32)
    assert found.reading
    assert not found.weight.any()
    ids, listed = packed.trunk, [n for n, wanted in enumerate(packed.trunk_lm) if wanted == packing.STEPS]
    assert listed
    assert found.labels[:, 0].tolist() == [ids[n + 1] for n in listed]
    first = found.lost
    assert found.real.sum(-1).tolist() == [1] * len(listed)
    with torch.no_grad():
        told = net.logits(net(packing.collate_trees([packed]))).log_softmax(-1)
        wanted = -torch.stack([told[n, ids[n + 1]] for n in listed]).mean()
        torch.testing.assert_close(upper.loss(net, [found], torch.float32), upper.MASS * wanted, atol=0.02, rtol=0.02)
    assert found.lost == pytest.approx(first, abs=0.02)


def test_of_a_long_list_of_steps_a_part_is_taught_and_its_end_always():
    for count in range(upper.MOST_STEPS, 5 * upper.MOST_STEPS, 7):
        tree = Tree("unseen", "form" + " Yes" * count + " cue", [], forms.scale("1-5"), (5, 8 + 4 * count))
        packed = packing.pack(tree, words(), random.Random(1), 0.0)
        assert packed is not None
        found = upper.rows(tree, packed, tiny(), torch.float32)
        assert found.labels[-1, 0] == packed.trunk[-1] != packed.trunk[-2]
        assert 10 < len(found.at) <= 2 + upper.MOST_STEPS
        assert len(set(found.at.tolist())) == len(found.at)


def test_scales_that_are_neither_known_nor_hopeless_are_drawn_most(monkeypatch):
    trees = [answered(monkeypatch)[3] for _ in range(4)]
    for tree, lost in zip(trees, (0.0, 1.0, 6.0), strict=False):
        tree.reading, tree.lost = True, lost
    drawn = [tree for n in range(400) for tree in upper.batch(trees, 0.125, random.Random(n))]
    known, half, hopeless, held = (sum(tree is one for tree in drawn) for one in trees)
    assert held == pytest.approx(400 * (1 - 0.875**upper.TREES), rel=0.1)  # there is one, and it is drawn once a step
    assert half > 6 * known
    assert half > 6 * hopeless
    assert upper.batch(trees[3:], 0.0, random.Random(1)) == trees[3:]


@pytest.mark.parametrize(("first", "rate"), [(-1, 0.01), (1, 0.004)])
def test_only_the_upper_layers_learn_and_they_come_nearer(monkeypatch, first, rate):
    net, _, packed, found = answered(monkeypatch, first=first)
    monkeypatch.setattr(upper, "MASS", 0.0)  # what is said alone; the mass has a test above
    better = torch.where(torch.arange(len(found.at)) == 1, 3.0, -1.5)[:, None]  # the second text, than what was said
    found.wanted = nn.functional.normalize(found.wanted * (better * found.values).exp(), p=1.0, dim=1)
    found.expected = (found.wanted * found.values).sum(-1)

    def off() -> float:
        return float((found.expected - own_answers(net, packed, found)[1])[found.valued].abs().max())

    before, far = {name: p.detach().clone() for name, p in net.named_parameters()}, off()
    *_, means = upper.fit(net.requires_grad_(False), [found], 0.0, 300, rate, random.Random(1), torch.float32, first)
    changed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(means)
    assert {int(name.split(".")[1]) for name in means} == set(range(3)[first:])
    net.load_state_dict(means, strict=False)
    assert off() < 0.5 * far


def test_scales_of_which_least_is_read_are_drawn_most(tmp_path, monkeypatch):
    known, unknown = (wordings.USUAL[n] for n in (0, 1))
    clock, rng = iter(range(10_000)), random.Random(1)
    drawn: list[tuple[tuple[int, int], list[float]]] = []

    def short(recipe: object, maker: SimpleNamespace) -> tuple[SimpleNamespace, SimpleNamespace]:
        drawn.append((maker.words, list(maker.usual)))
        labels = rng.choice([known, unknown, ["no", "such", "scale"]])
        return SimpleNamespace(scale=SimpleNamespace(labels=labels)), SimpleNamespace(leaves=labels[:1])

    def rows(tree: SimpleNamespace, *options: object) -> SimpleNamespace:
        *_, reading, _ = options
        return SimpleNamespace(reading=reading, lost=4.0 if tree.scale.labels == unknown else 0.0)

    def fresh(maker: SimpleNamespace) -> tuple[SimpleNamespace, SimpleNamespace]:
        return SimpleNamespace(scale=SimpleNamespace(labels=known)), SimpleNamespace(leaves=rng.choice([[], known[:1]]))

    recipe = SimpleNamespace(maker=lambda part, rng: SimpleNamespace(), fresh=fresh, dtype=torch.float32)
    monkeypatch.setattr(upper, "Adapting", lambda: recipe)
    monkeypatch.setattr(upper, "load", lambda folder: None)
    monkeypatch.setattr(upper, "short", short)
    monkeypatch.setattr(upper, "rows", rows)
    monkeypatch.setattr(upper.time, "monotonic", lambda: float(next(clock)))
    file = upper.read(tmp_path, 10.0, 0.25, 28, tmp_path, seed=1)
    found = torch.load(file, weights_only=False)
    assert len(found) == pytest.approx(600 * (0.75 + 0.25 / 2), abs=25)  # a list of steps tells nothing that is to stay
    assert sum(tree.reading for tree in found) == pytest.approx(450, abs=25)
    assert {words for words, _ in drawn} == set(upper.WORDS)
    first, last = drawn[0][1], drawn[-1][1]
    assert first == [first[0]] * len(wordings.USUAL)
    assert last[1] > 10 * first[1] > 100 * last[0] > 0.0
    assert last[2:] == first[2:]
    clock = iter(range(0, 10**9, 10**6))
    assert len(torch.load(upper.read(tmp_path, 1.0, 0.25, 28, tmp_path, seed=2), weights_only=False)) == 2


def test_trees_are_kept_for_adapters_with_the_same_layers_below_and_read_once(tmp_path, capsys):
    net = tiny()
    for name, changed in (("one", ""), ("above", "layers.2."), ("below", "layers.1.")):
        with torch.no_grad():
            for own, weight in net.named_parameters():
                weight += 0.1 * (bool(changed) and changed in own and ".lora_" in own)
        export.write_adapter(net, tmp_path / name)
    one, above, below = (upper.below(tmp_path / name, 2) for name in ("one", "above", "below"))
    assert one == above != below
    assert one != upper.below(tmp_path / "one", 1)
    (tmp_path / "3.pt").write_bytes(b"read before")
    assert upper.read(tmp_path / "one", 1.0, 0.5, 2, tmp_path, seed=3) == tmp_path / "3.pt"
    assert (tmp_path / "3.pt").read_bytes() == b"read before"
    assert "3.pt was read before" in capsys.readouterr().out


def test_new_upper_layers_are_written_to_a_new_folder_only(tmp_path, monkeypatch, capsys):
    export.write_adapter(tiny(), tmp_path / "one")
    kept = (tmp_path / "one" / "adapter_model.safetensors").read_bytes()
    monkeypatch.setattr("sys.argv", ["upper", str(tmp_path / "one"), "--to", str(tmp_path / "one")])
    with pytest.raises(SystemExit):
        upper.main()
    assert "exists; name a new folder" in capsys.readouterr().err
    assert (tmp_path / "one" / "adapter_model.safetensors").read_bytes() == kept
    monkeypatch.setattr("sys.argv", ["upper", str(tmp_path / "one"), "--to", str(tmp_path / "two"), "--first", "0"])
    with pytest.raises(SystemExit):
        upper.main()
    assert "the adapter changes layers 1 to 29" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def test_a_reply_is_worth_more_if_it_is_alike_to_the_last_turn_and_less_if_it_repeats_it():
    scale = forms.scale("1-3")
    leaves = [Leaf("", f"reply {n}", [0] * 7, "cue", scale.target(0.5), 0.5) for n in range(4)]
    told = teacher.Wanted(alike=[0.1, 0.3, 0.5, 0.99])
    after = teacher.grade(Tree("dialogue_coherence", "form", leaves, scale, source="What is new?"), told, words())
    values = [leaf.quality for leaf in after.leaves]
    assert values[3] < values[0] < values[1] < values[2]


def test_log_probabilities_are_the_frozen_trunks():
    net = tiny()
    packed = packing.Packed([5, 8, 3], [0] * 3, [[9, 4], [7, 1, 2]], [[0, 0]] * 2, [[0] * 2] * 2, [], [], [])
    trunk = as_transformers(net)
    other = packing.Packed([2, 6], [0] * 2, [[1], [], [3, 3, 8, 4]], [[0] * 4] * 3, [[0] * 4] * 3, [], [], [])
    trees = [packed, other]
    for tree, rows in zip(trees, teacher.log_probabilities(net, trees, torch.float32), strict=True):
        for leaf, told in zip(tree.leaves, rows, strict=True):
            logits = trunk(torch.tensor([tree.trunk + leaf])).logits[0].log_softmax(-1)
            wanted = [float(logits[len(tree.trunk) - 1 + n, token].detach()) for n, token in enumerate(leaf)]
            assert told == pytest.approx(wanted, abs=1e-3)


def test_fluencys_teacher_reads_a_candidate_after_its_source():
    net, code, scale = tiny(), words(), forms.scale("1-5")
    bodies = ["text form 3", "cue"]
    leaves = [Leaf("", body, [0] * len(body), "cue", scale.target(0.5), 0.5) for body in bodies]
    tree = Tree("fluency", "form", leaves, scale, sourced=False, source="form text 1")
    trunk = as_transformers(net)
    told = teacher.Wanted(behind=teacher.behind(tree, code))
    teacher.tell(net, [told], torch.float32)
    for body, row in zip(bodies, told.behind.told, strict=True):
        ids, own = code.encode(f"form text 1\n\nSummary:\n\n{body}").ids, len(code.encode(body).ids)
        logits = trunk(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [float(logits[at - 1, ids[at]].detach()) for at in range(len(ids) - own, len(ids))]
        assert [value for value in row if value == value] == pytest.approx(wanted, abs=1e-3)
    assert teacher.worst([-1.0, float("nan"), -2.0, -9.0, -4.0, -5.0], 0.4) == pytest.approx(-7.0)
    assert teacher.doubt([-0.5, float("nan"), -2.0, -4.0]) == pytest.approx(-4.0)


def test_trees_for_a_gpu_are_graded_by_what_another_process_is_told(monkeypatch):
    net, code, scale = tiny(), words(), forms.scale("1-5")
    bodies = ("text form", "Yes No", "cue", "form form text", "No")

    class Few(Adapting):
        def tokenizer(self) -> Tokenizer:
            return code

        def maker(self, part: str, rng: random.Random) -> SimpleNamespace:
            return SimpleNamespace(rng=rng)

        def fresh(self, maker: SimpleNamespace) -> tuple[Tree, packing.Packed]:
            leaves = [
                Leaf(" ", body, [0] * len(body), " cue", scale.target(0.5), 0.5 + 0.01 * n)
                for n, body in enumerate(bodies[: maker.rng.choice((0, 5))])
            ]
            tree = Tree("coherence", "form text", leaves, scale, source="Yes No form text.")
            return tree, packing.pack(tree, code, maker.rng, 0.0)

    def ask(asked: list[teacher.Wanted]) -> list:
        assert {len(own.trees) for own in asked} == {0, 1}  # a list of steps wants to know nothing
        return pickle.loads(pickle.dumps(supply.answered(net, pickle.dumps(asked), torch.float32, 10**6)))

    monkeypatch.setattr(supply, "ROUND", 8)
    data = next(supply.rounds(Few(), random.Random(4), 10**6, ask))
    assert len(data.batch.trunk) == 8
    trees = int((data.batch.leaf_length.sum(1) > 0).sum())
    assert 1 < trees < 8
    told = data.told.view(trees, -1)
    assert not told.isnan().any()
    tree, packed = next(
        one for seed in range(9) if (one := Few().fresh(Few().maker("", random.Random(seed))))[0].leaves
    )
    own = teacher.wanted(tree, packed, code)
    teacher.tell(net, [own], torch.float32)
    wanted = [leaf.quality for leaf in teacher.grade(tree, own, code).leaves]
    assert max(wanted) - min(wanted) > 0.3
    ranked = data.label_values.any(-1)
    for row in (data.label_target * data.label_values).sum(-1)[ranked].view(trees, -1):  # the order is the teacher's
        assert row.argsort().tolist() == np.argsort(wanted).tolist()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="drawing processes are forks")
def test_a_process_that_ends_stops_the_run(monkeypatch, capfd):
    def broken(*_: object) -> Iterator[Tensors]:
        raise ValueError("no trees today")

    monkeypatch.setattr(supply, "rounds", broken)
    monkeypatch.setattr(supply, "WAIT", 0.2)
    monkeypatch.setattr(teacher, "rarity", lambda code: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    recipe = Adapting()
    monkeypatch.setattr(recipe, "tokenizer", words)
    with pytest.raises(SystemExit, match="has ended"):
        next(supply.batches(recipe, torch.device("cpu"), 1, 1000))
    assert "no trees today" in capfd.readouterr().err


def test_how_a_text_reads_by_itself_is_told_against_how_rare_its_words_are(monkeypatch):
    net, code = tiny(), words()
    trunk = as_transformers(net)
    common = -np.arange(1.0, code.get_vocab_size() + 1) / 3
    monkeypatch.setattr(teacher, "rarity", lambda code: common)
    texts = ["text form 3", "", "cue text", "form form 1"]
    slor, ends = [], []
    for text in (text for text in texts if text):
        ids = code.encode(f"\n\nSummary:\n\n{text[:1].upper()}{text[1:]}").ids
        own = len(code.encode(text).ids)
        logits = trunk(torch.tensor([ids])).logits[0].log_softmax(-1)
        told = [float(logits[at - 1, ids[at]].detach()) for at in range(len(ids) - own, len(ids))]
        slor.append(np.mean(told) - common[ids[-own:]].mean())
        ends.append(told[-1])
    told = teacher.Wanted(alone=teacher.alone(texts, code))
    teacher.tell(net, [told], torch.float32)
    found = teacher.by_itself(told.alone, code)
    assert found[1] == 0.0
    wanted = teacher.standard(slor) + teacher.standard(ends)
    assert [found[n] for n in (0, 2, 3)] == pytest.approx(list(wanted), abs=1e-2)


def test_padding_and_a_shared_beginning_do_not_change_what_a_model_writes(monkeypatch):
    net = as_transformers(tiny())
    known = Tokenizer(models.WordLevel({"<pad>": 0} | {f"w{n}": n for n in range(1, TINY.vocabulary)}))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    code = PreTrainedTokenizerFast(tokenizer_object=known, pad_token="<pad>")
    monkeypatch.setattr(smol, "tokenizer", lambda: code)
    monkeypatch.setattr(written, "TEMPERATURES", (1e-4, 1e-4))
    monkeypatch.setattr(written, "TOKENS", 6)
    asked = ["w5 w8 w3 w20", "w7 w9"]
    alone = []
    for text in asked:
        ids = torch.tensor([code(text, add_special_tokens=False)["input_ids"]])
        out = net.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6, pad_token_id=0)
        alone.append(code.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    assert alone[0] != alone[1]
    assert written.sample(net, asked, 1) == [text for text in alone for _ in range(2)]


def test_traps_are_worth_less():
    rng = random.Random(1)
    good = Candidate(
        [parse("The library opened on Monday."), parse("It has a new roof.")], {"coherence": 0.8, "consistency": 0.9}
    )
    for trap in (
        traps.named(good, "Coherence", "5", rng),
        traps.again(good, rng),
        traps.nothing(good),
        traps.copied("A long source.", good),
    ):
        assert all(trap.quality[name] < value for name, value in good.quality.items())
    named = traps.named(good, "Coherence", "5", rng)
    assert named.fixed
    assert "5" in " ".join(word.text for sentence in named.sentences for word in sentence)


def test_a_copy_takes_one_place_of_a_short_sources_tree():
    short, long, rng = "a good library " * 20, "a good library " * 80, random.Random(1)
    found = [Candidate([parse(f"It opened on day {n}.")], {"consistency": 0.9}) for n in range(5)]
    words = [word.text for word in parse(short)]

    def copies(source: str, share: float) -> int:
        trees = [traps.set_in(found, "Consistency", "5", source, share, rng) for _ in range(100)]
        assert all(tree[:-1] == found[:-1] and len(tree) == len(found) for tree in trees)
        return sum([word.text for word in tree[-1].sentences[0]] == words for tree in trees)

    assert copies(short, 1.0) == 100
    assert copies(short, 0.4) == pytest.approx(40, abs=15)
    assert copies(short, 0.0) == copies(long, 1.0) == 0


def test_the_run_against_copies_goes_on_from_an_adapter_without_auxiliary_losses():
    recipe = RECIPES["copies"]
    with pytest.raises(SystemExit, match="--start FOLDER"):
        recipe.start(argparse.Namespace(start=None))
    weights = recipe.weights(0.0)
    assert weights.flags == weights.counts == weights.told == 0.0
    assert weights.label == RECIPES["smol"].weights(0.0).label


def test_a_check_says_one_sentence_of_the_criteria():
    for path in sorted((export.corpus.ROOT / "geval_local" / "metrics").glob("*/*.yaml")):
        metric = Metric.load(path)
        for check in forms.copied(metric.criteria, random.Random(1)):
            assert unfit([check], metric) is None, check
    told = "Is it all true? Answer Yes if every claim is, and No otherwise."
    assert all("every claim" not in check for seed in range(20) for check in forms.copied(told, random.Random(seed)))
    assert forms.short("Whether it is kind to the guest.") == "Whether it is kind to the guest."
    long = "How well the sentences of the text hold together as a whole and lead to an end."
    assert forms.short(long) == "How well the sentences of the text hold together as a whole."
    natural = "Whether it sounds like something that a person would say at a table with friends after a long day."
    assert forms.short(natural) == "Whether it sounds like something that a person would say at a table with friends."
