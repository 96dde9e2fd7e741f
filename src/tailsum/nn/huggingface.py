"""A CRF on top of a pretrained model of `transformers`, as a `transformers` model for token classification.

Labels are `[B, T]` over sub-words. -100 marks ignored sub-words, such as all but the first of a word: they are not part of
the chain, and their neighbours follow each other. -1 marks an unknown label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from tailsum.nn.crf import CRF
from tailsum.nn.schemes import allowed_by, scheme_tags

try:
    from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import TokenClassifierOutput
except ImportError:
    raise ImportError("CRFs on pretrained models need more packages: pip install 'tailsum[huggingface]'") from None

IGNORED = -100  # the label of sub-words that are not part of the chain


class CRFTokenConfig(PretrainedConfig):
    """The configuration of the pretrained model, the names of the tags (`id2label`), and an optional tagging scheme."""

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
    """`TokenClassifierOutput` with the best tags `[B, T]`, -100 at ignored sub-words; None while training."""

    tags: Int[Tensor, "B T"] | None = None


class CRFForTokenClassification(PreTrainedModel):
    """A pretrained model, a linear layer and a `CRF`, trained, saved and loaded like any other model.

    >>> from transformers import BertConfig
    >>> bert = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> model = CRFForTokenClassification.from_labels(bert, ["PER", "LOC"], scheme="BIO").eval()
    >>> output = model(torch.tensor([[3, 4, 5]]), labels=torch.tensor([[-100, 1, 2]]))
    >>> output.tags.shape, output.loss.shape
    (torch.Size([1, 3]), torch.Size([]))
    """

    config_class = CRFTokenConfig
    base_model_prefix = "backbone"

    def __init__(self, config: CRFTokenConfig) -> None:
        super().__init__(config)
        if config.backbone_config is None:
            raise ValueError("config must have a backbone_config, of the pretrained model: got None")
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
        """A new model on a pretrained one (its name, folder or object), or on a random one with a configuration.

        Give the `labels` of segments and a `scheme`, or the names of all `tags`, with or without a scheme.
        """
        if tags is None and (scheme is None or labels is None):
            raise ValueError("tags must be given, or labels and a scheme")
        names = list(tags) if tags is not None else scheme_tags(scheme or "", labels or [])
        if isinstance(backbone, PretrainedConfig):
            backbone = AutoModel.from_config(backbone)
        model = AutoModel.from_pretrained(backbone) if isinstance(backbone, str) else backbone
        ids = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        classifier = cls(CRFTokenConfig(model.config, scheme, classifier_dropout, **ids))
        classifier.backbone = model
        return classifier

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CRF):
            module.reset_parameters()
            if module.tags is not None:  # files do not hold the buffers, so loading leaves them empty
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
        """Scores, the loss if there are labels (minus the mean log-likelihood by label), and the best tags.

        `label_mask` marks the sub-words that have a tag: by default those whose label is not -100 or, without labels, those
        of the attention mask. See `first_pieces`.
        """
        read = self.backbone(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.classifier(self.dropout(read.last_hidden_state))
        mask = label_mask if label_mask is not None or labels is None else labels != IGNORED
        mask = attention_mask if mask is None else mask
        mask = torch.ones_like(logits[..., 0], dtype=torch.bool) if mask is None else mask.bool()
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
        output = CRFTokenOutput(loss, logits, read.get("hidden_states"), read.get("attentions"), tags)
        return output if return_dict is not False else output.to_tuple()


def first_pieces(encoding: Any) -> Bool[Tensor, "B T"]:
    """A `label_mask` of the first sub-word of each word, from a fast tokenizer's encoding of lists of words."""
    rows = [encoding.word_ids(i) for i in range(len(encoding["input_ids"]))]
    return torch.tensor(
        [[word is not None and (i == 0 or row[i - 1] != word) for i, word in enumerate(row)] for row in rows]
    )


AutoConfig.register(CRFTokenConfig.model_type, CRFTokenConfig, exist_ok=True)
AutoModelForTokenClassification.register(CRFTokenConfig, CRFForTokenClassification, exist_ok=True)
