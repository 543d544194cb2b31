"""llama.cpp's grammar sampler, and checks of what it is given."""
