"""The adapter's training: it computes what peft loads, reads the package's chat form, and grades by a teacher."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

pytest.importorskip("scipy", reason="the training scripts need the test extra")

from geval_local.metric import Metric
from geval_local.prompt import render_form
from training import export, forms, gather, packing, scoring, states, traps, wordings
from training.candidates import Candidate
from training.damage import parse
from training.likelihood import Likelihood
from training.model import Batch, Shape
from training.shelf import Material, text_of
from training.smol import Adapted, Adapter, Smol
from training.tasks import END_OF_TURN, Leaf, Tree
from training.teacher import Teacher

TINY = Shape(101, hidden=24, layers=3, heads=6, intermediate=40, theta=10000.0, shared=3)


def tiny() -> Smol:
    torch.manual_seed(1)
    net = Smol(Adapter(first=1, rank=2), TINY).eval()
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
    own = {export._name(n): p for n, p in net.state_dict().items() if "lora" not in n and "flags" not in n}
    assert not trunk.load_state_dict(own, strict=False).missing_keys[1:]
    return trunk.eval()


def test_peft_computes_the_same(tmp_path):
    peft = pytest.importorskip("peft")
    net = tiny()
    export.write_adapter(net, tmp_path)
    loaded = peft.PeftModel.from_pretrained(as_transformers(net), str(tmp_path))
    ids = torch.randint(0, 101, (1, 20))
    batch = Batch(ids[:, :12], ids[:, 12:].view(1, 1, 8), torch.tensor([12]), torch.tensor([[8]]))
    with torch.no_grad():
        assert torch.allclose(net.logits(net(batch)), loaded(ids).logits[0], atol=1e-4)
    assert (
        max(
            p.dtype.itemsize
            for p in __import__("safetensors.torch").torch.load_file(tmp_path / "adapter_model.safetensors").values()
        )
        == 2
    )


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


def test_kept_states_and_wanted_places_change_nothing():
    net = tiny()
    batch = Batch(
        torch.randint(0, 101, (1, 9)), torch.randint(0, 101, (1, 3, 7)), *map(torch.tensor, ([9], [[7, 2, 5]]))
    )
    wanted = torch.tensor([4, 9 + 6, 9 + 7 + 1, 9 + 14 + 4])
    with torch.no_grad():
        whole = net(batch)
        batch.states = net.below(batch)
        assert torch.allclose(net(batch, wanted=wanted)[wanted], whole[wanted], atol=1e-5)


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


def test_scores_are_the_models_own_chances(tmp_path):
    net, code, scale = tiny(), words(), forms.scale("0-10")
    rows = ["form text cue", "form text text cue"]
    for again in range(2):  # read, and read from the file
        kept = scoring.score(net, code, rows, scale, tmp_path)
        assert np.allclose(kept, scoring.score(net, code, rows, scale), rtol=0.02), again
    assert len(list(tmp_path.iterdir())) == 1
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


def test_the_teacher_follows_rules_and_likelihoods_and_fills_the_scale():
    rng = np.random.default_rng(3)
    candidates, read = [], []
    for level in range(40):
        candidate = Candidate(
            [parse("One word is odd.")], dict.fromkeys(("coherence", "consistency", "fluency", "relevance"), level / 40)
        )
        ends = np.array(text_of(candidate)[1])[[0, 1, 2, 3]] - 1
        given = np.array([-1.0, -2.0, -1.0, -9.0 + level / 8]) + rng.normal(0, 0.01, 4)
        candidates.append(candidate)
        read.append(Likelihood(given, np.full(4, -3.0), ends))
    material = Material({"source": "x"}, candidates, " ", read)
    graded = Teacher.of([material]).graded(material).candidates
    for dimension in ("coherence", "consistency", "fluency", "relevance"):
        values = [c.quality[dimension] for c in graded]
        assert np.corrcoef(values, range(40))[0, 1] > 0.95
        assert min(values) < 0.1
        assert max(values) > 0.9


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
    assert "5" in text_of(traps.named(good, "Coherence", "5", rng))[0]


def test_a_start_is_an_ordinary_setting_of_the_maps():
    torch.manual_seed(2)
    module = Adapted(6, 4, Adapter(rank=2))
    x, row, column = torch.randn(5, 6), torch.randn(6), torch.randn(4)
    before = module(x)
    gather.change(module, 1, row, column, 7.0)
    assert torch.allclose(module(x) - before, (x @ row)[:, None] * column, atol=1e-5)


#: Heads wide enough for the start: a channel for every thing that a key says.
WIDE = Shape(101, hidden=96, layers=3, heads=3, intermediate=100, theta=10000.0, shared=3)


def noticed(rng: random.Random, concept: str, places: tuple[int, int]) -> states.Tree:
    """A tree whose states tell the candidate's tokens, the kind of form, and a candidate's value."""
    quality = [rng.random() for _ in range(6)]
    flags = [-1, 0, 0, 0, packing.GATHER, packing.GATHER]
    labels = [(n, 5, [7, 3], [1.0 - q, q]) for n, q in enumerate(quality)]  # "5" and "1" of the tokenizer below
    packed = packing.Packed(
        [1] * 9,
        [0] * 9,
        [[2] * 6] * 6,
        [flags] * 6,
        [[0] * 6] * 6,
        labels,
        [[1.0, 0.0]] * 6,
        quality,
        [{concept: q} for q in quality],
        [*range(6)],
        concept,
        measured=True,
    )
    told = torch.full((9 + 36, states.MARKS), float("nan"))
    x = 0.03 * torch.randn(9 + 36, WIDE.hidden)
    x[:, 3] += 2.0
    for n, q in enumerate(quality):
        own = slice(9 + 6 * n + 1, 9 + 6 * n + 4)
        x[own, 0] += 2.0
        x[own, places[0]] += 2.0 * q  # what this kind of form asks for
        x[own, places[1]] += 2.0 * rng.random()  # what the other one would
        told[own, 0] = -6.0 + 3.0 * x[own, 1].mean()  # the mark that coherence is made of
        told[own, 1] = told[own, 0] + 6.0 - 3.0 * x[own, 5].mean()  # and that of fluency
        x[own.stop + 1, 2 if concept == "coherence" else 4] += 2.0
    return states.Tree(packed, x.half(), told)


@pytest.fixture(scope="module")
def begun() -> tuple[Smol, list[states.Tree]]:
    """A network with the start, and trees of two kinds of form that it was not fitted on."""
    torch.manual_seed(4)
    rng = random.Random(4)
    net = Smol(Adapter(first=1, rank=64), WIDE).eval()
    for name, parameter in net.named_parameters():
        if parameter.dim() == 2 and "lora_B" not in name:
            nn.init.normal_(parameter, std=0.05)
    trees = [
        noticed(rng, name, places) for _ in range(24) for name, places in (("coherence", (1, 5)), ("fluency", (5, 1)))
    ]
    gather.prepare(net, trees[12:], words())
    return net, trees[:12]


def test_the_start_reads_the_value_that_the_form_asks_for(begun):
    net, held_out = begun
    for rank, _, _ in states.agreement(net, held_out).values():
        assert rank > 0.4  # six values a tree, units fitted on some hundred texts: .59 to .94 by seed; chance is 0


def test_ridge_finds_the_direction():
    torch.manual_seed(3)
    x, direction = torch.randn(400, 8), torch.randn(8, 1)
    found = gather.ridge(x, x @ direction + 0.1 * torch.randn(400, 1), 1e-4)
    assert torch.allclose(found, direction, atol=0.05)
