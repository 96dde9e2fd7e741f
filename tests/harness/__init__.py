"""What tests share: truths by enumeration, cases of every structure, and checks of a model against its truth."""
