"""The simulated accelerator, and the tests that run on it. See README.md in this folder."""
