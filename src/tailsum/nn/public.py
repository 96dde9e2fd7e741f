"""Every public name of `tailsum.nn`."""

from tailsum.nn.crf import CRF
from tailsum.nn.decoder import Decoder, Joint, Probes, as_sample
from tailsum.nn.dependency_parser import DependencyParser
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.pretrained import PretrainedEncoder
from tailsum.nn.span_parser import SpanParser
from tailsum.nn.structured_vae import Elbo, GenerativeModel, StructuredVAE

__all__ = [
    "CRF",
    "CRFInference",
    "Decoder",
    "DependencyParser",
    "Elbo",
    "Estimator",
    "GenerativeModel",
    "Joint",
    "LSTMEncoder",
    "PretrainedEncoder",
    "Probes",
    "SpanParser",
    "StructuredVAE",
    "TransformerEncoder",
    "as_sample",
]
