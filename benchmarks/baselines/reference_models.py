"""Reference metrics with their own models: BERTScore, BARTScore and UniEval, on the user's weights.

Each follows its authors' code: bert-score 0.3 without idf and rescaling, BARTScore's ``bart_score.py``, UniEval's
``scorer.py``. None of them is a judge: a BERT has no next-token distribution, and BART and T5 are encoder-decoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from geval_local.errors import JudgeError, TokenizerError, WeightsError, first_line
from geval_local.models.config_checks import check_weight_files
from geval_local.models.load import resolve_directory
from geval_local.models.options import quiet
from geval_local.models.registry import JudgeEntry

__all__ = ["ReferenceModel", "bart_scores", "bert_scores", "load_reference_model", "yes_probabilities"]

Kind = Literal["bertscore", "bartscore", "unieval"]
Pairs = Sequence[tuple[str, str]]

#: Longest input in tokens, as in BARTScore's and UniEval's code; a model with a shorter context has its own limit.
MAX_TOKENS = 1024
BATCH = 8
#: (model type, layers) -> the layer used by bert-score.
BEST_LAYERS = {("bert", 12): 9, ("bert", 24): 18, ("roberta", 12): 10, ("roberta", 24): 17, ("distilbert", 6): 5}


@dataclass
class ReferenceModel:
    """A loaded reference metric.

    Attributes
    ----------
    kind : {"bertscore", "bartscore", "unieval"}
        The metric that it computes.
    model, tokenizer : object
        From transformers, in evaluation mode.
    limit : int
        Longest input in tokens.
    shortened : int
        Number of texts truncated to `limit` so far.
    """

    kind: Kind
    model: Any
    tokenizer: Any
    limit: int
    shortened: int = 0

    @property
    def layer(self) -> int:
        """The layer used by BERTScore: the authors' choice, or the last."""
        config = self.model.config
        layers = int(config.num_hidden_layers)
        return BEST_LAYERS.get((str(config.model_type), layers), layers)

    def encode(self, texts: Sequence[str]) -> Any:
        """Encode texts as one padded batch on the model's device, truncated to `limit`, and count truncations."""
        with quiet():
            self.shortened += sum(len(ids) > self.limit for ids in self.tokenizer(list(texts)).input_ids)
            batch = self.tokenizer(
                list(texts), padding=True, truncation=True, max_length=self.limit, return_tensors="pt"
            )
        return batch.to(self.model.device)


def load_reference_model(kind: Kind, entry: JudgeEntry, *, device: str | None = None) -> ReferenceModel:
    """Load a reference metric from local safetensors, in float32.

    Raises
    ------
    WeightsError
        If weights are missing, incomplete or not safetensors.
    JudgeError
        If the model does not have the architecture that the metric needs.
    TokenizerError
        If there is no tokenizer, or no padding token.
    """
    directory = resolve_directory(entry)
    check_weight_files(
        entry, directory, hint=f"{kind} needs a directory with safetensors; transformers converts others."
    )
    maker: Any = AutoModel if kind == "bertscore" else AutoModelForSeq2SeqLM
    with quiet():
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        except Exception as error:
            raise TokenizerError(f"{kind}: no tokenizer can be loaded from {directory}: {first_line(error)}") from error
        try:
            model, report = maker.from_pretrained(
                str(directory),
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
        except (OSError, RuntimeError, ValueError, KeyError, AttributeError, SafetensorError) as error:
            raise JudgeError(
                f"{kind}: {directory} cannot be loaded as {'an encoder' if kind == 'bertscore' else 'encoder-decoder'}"
                f": {first_line(error)}"
            ) from error
    missing = sorted(str(key) for key in report["missing_keys"] if "pooler" not in str(key))
    if missing:
        raise WeightsError(f"{kind}: {directory} lacks weights for {', '.join(missing[:3])}; they would be random")
    if tokenizer.pad_token_id is None:
        raise TokenizerError(f"{kind}: the tokenizer in {directory} has no token to pad with")
    own = min(
        int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS)
    )
    if str(model.config.model_type) == "roberta":
        own -= 2  # its first two positions are reserved for padding
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return ReferenceModel(kind, model.to(chosen).eval().requires_grad_(False), tokenizer, min(own, MAX_TOKENS))


@torch.inference_mode()
def bert_scores(reference: ReferenceModel, pairs: Pairs) -> list[float]:
    """Compute BERTScore F1 of (candidate, reference) pairs: greedy matching of token embeddings by cosine.

    Every token may be matched; the tokenizer's special first and last tokens do not count in the means.
    """
    scores: list[float] = []
    for start in range(0, len(pairs), BATCH):
        part = pairs[start : start + BATCH]
        (a, mask_a, own_a), (b, mask_b, own_b) = (_embed(reference, [pair[side] for pair in part]) for side in (0, 1))
        similarity = a @ b.transpose(1, 2)
        similarity = similarity.masked_fill(~(mask_a[:, :, None] & mask_b[:, None]), -torch.inf)
        precision = _mean(similarity.max(dim=2).values, own_a)
        recall = _mean(similarity.max(dim=1).values, own_b)
        scores += (2 * precision * recall / (precision + recall)).tolist()
    return scores


def _embed(reference: ReferenceModel, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return unit token embeddings, the mask of tokens, and the mask of the text's own tokens."""
    batch = reference.encode(texts)
    states = reference.model(**batch, output_hidden_states=True).hidden_states[reference.layer]
    mask = batch["attention_mask"].bool()
    special = torch.tensor(
        [
            reference.tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
            for ids in batch["input_ids"].tolist()
        ],
        device=mask.device,
    ).bool()
    return torch.nn.functional.normalize(states, dim=-1), mask, mask & ~special


def _mean(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    # Not values * own: padded positions are -inf, which times 0 is NaN.
    return values.masked_fill(~own, 0.0).sum(dim=1) / own.sum(dim=1)


@torch.inference_mode()
def bart_scores(reference: ReferenceModel, pairs: Pairs) -> list[float]:
    """Compute BARTScore of (source, target) pairs: mean log-probability of all target tokens, in nats."""
    scores: list[float] = []
    for start in range(0, len(pairs), BATCH):
        source, target = (reference.encode([pair[side] for pair in pairs[start : start + BATCH]]) for side in (0, 1))
        labels = target["input_ids"]
        logits = reference.model(
            input_ids=source["input_ids"], attention_mask=source["attention_mask"], labels=labels
        ).logits
        own = target["attention_mask"].bool()
        chosen = logits.log_softmax(dim=-1).gather(2, labels[:, :, None])[:, :, 0]
        scores += _mean(chosen, own).tolist()
    return scores


@torch.inference_mode()
def yes_probabilities(reference: ReferenceModel, questions: Sequence[str]) -> list[float]:
    """Compute the probability of "Yes" against "No" as the first token of the answer, as UniEval does.

    Raises
    ------
    TokenizerError
        If the tokenizer gives both answers the same first token.
    """
    yes, no = (reference.tokenizer(word, add_special_tokens=False).input_ids[0] for word in ("Yes", "No"))
    if yes == no:
        raise TokenizerError("unieval: the tokenizer gives Yes and No the same first token")
    scores: list[float] = []
    for start in range(0, len(questions), BATCH):
        batch = reference.encode(questions[start : start + BATCH])
        first = torch.full((len(batch["input_ids"]), 1), int(reference.model.config.decoder_start_token_id))
        logits = reference.model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=first.to(reference.model.device),
        ).logits[:, -1]
        scores += torch.sigmoid(logits[:, yes] - logits[:, no]).tolist()
    return scores
