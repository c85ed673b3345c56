"""Writes the trained judge as a transformers directory: `python -m training.export`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from training import corpus, tokenizer
from training.model import Batch, Nano, Shape
from training.tokenizer import BEGIN, END, PAD
from training.train import RUNS

TARGET = corpus.ROOT / "geval_local" / "judges" / "nano"
CONTEXT = 4096


def config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_size,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=shape.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )


def _name(ours: str) -> str:
    """Give transformers' name of a weight: theirs group the projections."""
    if ours == "lm_head.weight":
        return ours
    ours = re.sub(r"\.([qkvo]_proj)", r".self_attn.\1", ours)
    return "model." + re.sub(r"\.((?:gate|up|down)_proj)", r".mlp.\1", ours)


def write(net: Nano, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    settings = config(net.shape)
    settings.save_pretrained(target)
    state = {
        _name(name): p.detach().to(torch.bfloat16).contiguous()
        for name, p in net.state_dict().items()
        if not name.startswith(("flags.", "counts."))
    }
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    (target / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False}, indent=2) + "\n"
    )
    tokenizer.load().save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": BEGIN,
                "eos_token": END,
                "pad_token": PAD,
                "model_max_length": CONTEXT,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
        + "\n"
    )


def rounded(net: Nano) -> Nano:
    """Copy the network with its weights as they are shipped."""
    copy = Nano(net.shape)
    copy.load_state_dict({name: p.to(torch.bfloat16).float() for name, p in net.state_dict().items()})
    return copy


def difference(net: Nano, target: Path) -> float:
    """Largest difference of log-probabilities between the training network and the exported model, both in float32."""
    exported = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    ids = torch.randint(3, net.shape.vocabulary, (1, 90))
    ours_rounded = rounded(net)
    batch = Batch(ids[:, :60], ids[:, 60:].view(1, 1, 30), torch.tensor([60]))
    with torch.no_grad():
        ours = ours_rounded.logits(ours_rounded(batch, torch.float32)).log_softmax(-1)
        theirs = exported(ids).logits[0].log_softmax(-1)
    return float((ours - theirs).abs().max())


def load(name: str) -> Nano:
    state = torch.load(RUNS / name / "checkpoint.pt", weights_only=True)
    net = Nano(Shape(**state["shape"]))
    net.load_state_dict(state["net"], strict=False)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("--name", default="nano", help="folder under training/runs")
    parser.add_argument("--to", type=Path, default=TARGET)
    options = parser.parse_args()
    net = load(options.name)
    write(net, options.to)
    size = sum(p.stat().st_size for p in options.to.iterdir())
    print(f"{options.to}: {size / 1e6:.1f} MB, differs from the training network by {difference(net, options.to):.1e}")


if __name__ == "__main__":
    main()
