"""The paper's structured VAE (Section 5.2, Table 5 and Figure 2), trained again by each way to sum over the states."""
