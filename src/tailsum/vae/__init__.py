"""A structured variational autoencoder whose latent chain may have very many states."""
