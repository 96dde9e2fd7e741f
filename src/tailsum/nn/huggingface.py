"""A CRF on top of a pretrained model of `transformers`, as one of its own models: token classification by whole paths.

Labels are `[B, T]` over sub-words. -100 marks those that do not count, such as all but the first of a word: they are no part
of the chain, and their neighbours follow each other. -1 marks a label that is not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tailsum.nn.crf import CRF
from tailsum.nn.schemes import allowed_by, scheme_tags

try:
    from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import TokenClassifierOutput
except ImportError:
    raise ImportError("CRFs on pretrained models need more packages: pip install 'tailsum[huggingface]'") from None

IGNORED = -100  # the label of sub-words that do not count


class CRFTokenConfig(PretrainedConfig):
    """The configuration of the pretrained model, the names of the tags (`id2label`), and a tagging scheme, if any."""

    model_type = "tailsum-crf"

    def __init__(
        self,
        backbone_config: PretrainedConfig | dict[str, Any] | None = None,
        scheme: str | None = None,
        classifier_dropout: float = 0.1,
        **options: Any,
    ) -> None:
        if isinstance(backbone_config, dict):
            backbone_config = AutoConfig.for_model(**backbone_config)
        self.backbone_config, self.scheme, self.classifier_dropout = backbone_config, scheme, classifier_dropout
        super().__init__(**options)


@dataclass
class CRFTokenOutput(TokenClassifierOutput):
    """As `TokenClassifierOutput`, and the best tags `[B, T]`, -100 where none is asked for; None while training."""

    tags: Int[Tensor, "B T"] | None = None


class CRFForTokenClassification(PreTrainedModel):
    """A pretrained model, a linear layer and a `CRF`: trained with labels, saved and loaded as any other model.

    >>> from transformers import BertConfig
    >>> bert = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> model = CRFForTokenClassification.from_labels(bert, ["PER", "LOC"], scheme="BIO").eval()
    >>> found = model(torch.tensor([[3, 4, 5]]), labels=torch.tensor([[-100, 1, 2]]))
    >>> found.tags.shape, found.loss.shape
    (torch.Size([1, 3]), torch.Size([]))
    """

    config_class = CRFTokenConfig
    base_model_prefix = "backbone"

    def __init__(self, config: CRFTokenConfig) -> None:
        super().__init__(config)
        if config.backbone_config is None:
            raise ValueError("config must have a backbone_config, that of the pretrained model: got None")
        self.backbone = AutoModel.from_config(config.backbone_config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        names: Any = config.id2label
        tags = [names[i] for i in range(len(names))]
        self.classifier = nn.Linear(config.backbone_config.hidden_size, len(tags))
        scheme = config.scheme
        self.crf = CRF(len(tags), True) if scheme is None else CRF.for_scheme(scheme, tags=tags, batch_first=True)
        self.post_init()

    @classmethod
    def from_labels(
        cls,
        backbone: str | PretrainedConfig | PreTrainedModel,
        labels: Sequence[str] | None = None,
        *,
        scheme: str | None = None,
        tags: Sequence[str] | None = None,
        classifier_dropout: float = 0.1,
    ) -> "CRFForTokenClassification":
        """A new model on a pretrained one (its name, folder or object), or on a random one by its configuration.

        Give the `labels` of segments and a `scheme`, or the names of all `tags`, with or without one.
        """
        if tags is None and (scheme is None or labels is None):
            raise ValueError("tags must be given, or labels and a scheme")
        names = list(tags) if tags is not None else scheme_tags(scheme or "", labels or [])
        if isinstance(backbone, PretrainedConfig):
            backbone = AutoModel.from_config(backbone)
        model = AutoModel.from_pretrained(backbone) if isinstance(backbone, str) else backbone
        ids = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        made = cls(CRFTokenConfig(model.config, scheme, classifier_dropout, **ids))
        made.backbone = model
        return made

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CRF):
            module.reset_parameters()
            if module.tags is not None:  # what no file holds is not there after loading
                tables = allowed_by(self.config.scheme, module.tags)
                for buffer, table in zip(
                    (module.allowed_start, module.allowed, module.allowed_end), tables, strict=True
                ):
                    assert buffer is not None
                    buffer.copy_(table)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Shaped[Tensor, "B T"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        label_mask: Shaped[Tensor, "B T"] | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> CRFTokenOutput | tuple[Any, ...]:
        """Scores, the loss if there are labels (minus the mean log-likelihood by counted label), and the best tags.

        `label_mask` says which sub-words have a tag: by default those whose label is not -100 or, without labels, those of
        the attention mask. See `first_pieces`.
        """
        read = self.backbone(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.classifier(self.dropout(read.last_hidden_state))
        mask = self._counted(logits, attention_mask, labels, label_mask)
        rows = mask.any(1)  # a window of a long text may have no label at all
        loss = None
        if labels is not None:
            count = mask.sum().clamp(min=1)
            loss = -self.crf(logits[rows], labels[rows], mask[rows]) / count
        tags = None
        if not self.training or labels is None:
            paths = self.crf.decode(logits[rows], mask[rows])
            tags = torch.full(mask.shape, IGNORED, device=mask.device)
            tags[mask] = torch.tensor([tag for path in paths for tag in path], dtype=torch.long, device=mask.device)
        found = CRFTokenOutput(loss, logits, read.get("hidden_states"), read.get("attentions"), tags)
        return found if return_dict is not False else found.to_tuple()

    def _counted(
        self,
        logits: Float[Tensor, "B T num_tags"],
        attention_mask: Shaped[Tensor, "B T"] | None,
        labels: Int[Tensor, "B T"] | None,
        label_mask: Shaped[Tensor, "B T"] | None,
    ) -> Bool[Tensor, "B T"]:
        if label_mask is not None:
            return label_mask.bool()
        if labels is not None:
            return labels != IGNORED
        if attention_mask is not None:
            return attention_mask.bool()
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)


def first_pieces(encoding: Any) -> Bool[Tensor, "B T"]:
    """Which sub-words are the first of a word, from what a fast tokenizer returned for lists of words: a `label_mask`."""
    rows = [encoding.word_ids(i) for i in range(len(encoding["input_ids"]))]
    return torch.tensor(
        [[word is not None and (i == 0 or row[i - 1] != word) for i, word in enumerate(row)] for row in rows]
    )


AutoConfig.register(CRFTokenConfig.model_type, CRFTokenConfig, exist_ok=True)
AutoModelForTokenClassification.register(CRFTokenConfig, CRFForTokenClassification, exist_ok=True)
