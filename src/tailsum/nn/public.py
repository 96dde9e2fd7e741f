"""Every public name of `tailsum.nn`."""

from tailsum.nn.crf import CRF
from tailsum.nn.decoder import Decoder, Joint, Probes, as_sample
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.estimator import Estimator
from tailsum.nn.inference import CRFInference
from tailsum.nn.pretrained import PretrainedEncoder
from tailsum.nn.structured_vae import Elbo, GenerativeModel, StructuredVAE

__all__ = [
    "CRF",
    "CRFInference",
    "Decoder",
    "Elbo",
    "Estimator",
    "GenerativeModel",
    "Joint",
    "LSTMEncoder",
    "PretrainedEncoder",
    "Probes",
    "StructuredVAE",
    "TransformerEncoder",
    "as_sample",
]
