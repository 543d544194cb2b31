"""The machine: cores, memory, folders, and who has them."""
