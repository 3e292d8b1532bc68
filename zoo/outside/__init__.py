"""Sets of programs that others wrote. They are fetched by whoever measures, and nothing of them is stored here."""
