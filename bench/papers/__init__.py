"""The papers' values, the model of their machines, and the rows of bench/paper."""
