"""Programs that tests run: written ones, random ones, and what they are made of."""
