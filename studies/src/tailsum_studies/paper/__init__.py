"""The paper's experiments (its Tables 2, 3 and 4, and what it proves), and harder ones. Table 5 is `tailsum_studies.vae`'s."""
