"""A structured variational autoencoder whose latent chain may have very many states.

`CRFInference` puts a linear-chain CRF over N states on any encoder, `Decoder` generates states and words, and
`StructuredVAE` trains one with the other; `tailsum train` does it all.
"""

from tailsum.apps.vae.decoder import Decoder, Joint, Probes, as_sample
from tailsum.apps.vae.model import Elbo, StructuredVAE
from tailsum.nn.encoder import LSTMEncoder, TransformerEncoder
from tailsum.nn.inference import CRFInference, Estimator
from tailsum.nn.pretrained import PretrainedEncoder

__all__ = [
    "CRFInference",
    "Decoder",
    "Elbo",
    "Estimator",
    "Joint",
    "LSTMEncoder",
    "PretrainedEncoder",
    "Probes",
    "StructuredVAE",
    "TransformerEncoder",
    "as_sample",
]
