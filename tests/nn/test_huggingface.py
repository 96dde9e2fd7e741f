"""A CRF on a model of transformers: trained, saved and loaded as one of its own; without a network."""

import pytest
import torch

from tailsum.nn import CRF

transformers = pytest.importorskip("transformers")
from tailsum.nn.huggingface import CRFForTokenClassification, first_pieces  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_network")


def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)


def model(**options):
    made = CRFForTokenClassification.from_labels(bert(), **(options or {"labels": ["X", "Y"], "scheme": "BIO"}))
    for parameter in made.crf.parameters():
        torch.nn.init.normal_(parameter)
    return made.eval()


WORDS = torch.randint(30, (3, 6), generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[-100, 1, -100, 2, 0, -100], [-100, 0, 0, 3, 4, -100], [-100] * 6])
READ = torch.tensor([[1] * 6, [1] * 6, [1, 1, 1, 0, 0, 0]])


def test_labels_that_do_not_count_are_left_out():
    made = model()
    found = made(WORDS, READ, LABELS)
    crf, logits = made.crf, found.logits
    first = crf(logits[:1, [1, 3, 4]], torch.tensor([[1, 2, 0]]))
    second = crf(logits[1:2, 1:5], torch.tensor([[0, 0, 3, 4]]))
    torch.testing.assert_close(found.loss, -(first + second) / 7)
    assert found.tags.shape == LABELS.shape
    assert torch.equal(found.tags == -100, LABELS == -100)
    assert found.tags[0, [1, 3, 4]].tolist() == crf.decode(logits[:1, [1, 3, 4]])[0]
    asked = made(WORDS, READ, label_mask=LABELS != -100)
    assert torch.equal(asked.tags, found.tags)
    assert asked.loss is None
    assert torch.equal(made(WORDS, READ).tags == -100, READ == 0)
    assert (made(WORDS).tags >= 0).all()
    loss, scores, tags = made(WORDS, READ, LABELS, return_dict=False)
    assert torch.equal(loss, found.loss)
    assert torch.equal(scores, logits)
    assert torch.equal(tags, found.tags)


@pytest.mark.parametrize("scheme", ["BIO", None])
@pytest.mark.parametrize("auto", [True, False])
def test_saved_and_loaded(tmp_path, scheme, auto):
    made = model(tags=["O", "I-X", "B-X"], scheme=scheme)
    made.save_pretrained(tmp_path)
    kind = transformers.AutoModelForTokenClassification if auto else CRFForTokenClassification
    loaded = kind.from_pretrained(tmp_path)
    assert type(loaded) is CRFForTokenClassification
    assert loaded.config.id2label == {0: "O", 1: "I-X", 2: "B-X"}
    assert (loaded.crf.allowed is None) == (scheme is None)
    if scheme:
        for name, buffer in made.crf.named_buffers():
            assert torch.equal(loaded.crf.get_buffer(name), buffer)
    for name, weight in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert torch.equal(loaded(WORDS, READ).tags, made(WORDS, READ).tags)


def test_it_learns():
    made = model().train()
    before = [x.clone() for x in made.parameters()]
    optimiser = torch.optim.Adam(made.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        found = made(WORDS, READ, LABELS)
        assert found.tags is None
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        losses.append(found.loss.item())
    assert losses[-1] < 0.3 * losses[0]
    changed = [not torch.equal(a, b) for a, b in zip(before, made.parameters(), strict=True)]
    assert sum(changed) >= len(changed) - 2  # the pooler is not used
    made.eval()
    assert torch.equal(made(WORDS, READ, LABELS).tags, LABELS)


def test_a_model_that_is_there_already(tmp_path):
    backbone = transformers.AutoModel.from_config(bert())
    backbone.save_pretrained(tmp_path)
    for given in (backbone, str(tmp_path)):
        made = CRFForTokenClassification.from_labels(given, ["X"], scheme="IOBES")
        weight = made.backbone.embeddings.word_embeddings.weight
        assert torch.equal(weight, backbone.embeddings.word_embeddings.weight)
        assert made.crf.num_tags == made.config.num_labels == 5
    fresh = made.crf.transitions
    assert fresh.abs().max() <= 0.1
    assert not torch.equal(fresh, CRF(5).transitions)
    with pytest.raises(ValueError, match="tags must be given, or labels and a scheme"):
        CRFForTokenClassification.from_labels(backbone, ["X"])


class Encoding(dict):
    def word_ids(self, i):
        return [[None, 0, 0, 1, None], [None, 0, 1, 1, 1]][i]


def test_first_pieces():
    found = first_pieces(Encoding(input_ids=[[0] * 5] * 2))
    assert found.int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 1, 0, 0]]
