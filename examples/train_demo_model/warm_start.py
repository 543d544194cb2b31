"""Starts the `llama` model from a trained `gemma3` one.

Owns: the conversion. Norms after the layers and on queries and keys have no place in a `llama`
file, so each becomes a constant: its weight over the root mean square that it saw on generated
dialogues. GELU(x) is close to SiLU(1.702 x) / 1.702. Rotary pairs move from halves to
neighbours. The result is only roughly the same function; `train.py --resume` does the rest.

    python warm_start.py GEMMA/last.pt TOKENIZER.json LLAMA/last.pt
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import data
import dialogues
import export
import model as models
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

GELU_SLOPE = 1.702
BATCHES = 3


def _record(store: dict[str, list[Tensor]], name: str) -> Callable[[Any, Any, Tensor], None]:
    def hook(_module: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        size = inputs[0].float().square().mean(-1).add(1e-6).rsqrt()
        # Queries and keys are (batch, length, heads, size): one number for each head.
        store[name].append(size.mean((0, 1)).reshape(-1))

    return hook


@torch.no_grad()
def gains(network: models.Transformer, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """What each replaced norm multiplied by on average, its own weight left out."""
    seen: dict[str, list[Tensor]] = defaultdict(list)
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, models.Norm) and name.endswith(("_post", "q_norm", "k_norm")):
            hooks.append(module.register_forward_hook(_record(seen, name)))
    weights = dict.fromkeys(dialogues.SKILLS, 1.0)
    source = data.batches(data.Encoder(tokenizer), 77, weights, 4096)
    for _, batch in zip(range(BATCHES), source, strict=False):
        network.hidden(batch.tokens)
    for hook in hooks:
        hook.remove()
    return {name: torch.stack(values).mean(0) for name, values in seen.items()}


def _rotary_rows(weight: Tensor, norm: Tensor, gain: Tensor) -> Tensor:
    """Query or key rows with their norm folded in, halves interleaved."""
    heads, size = len(gain), len(norm)
    rows = weight.view(heads, size, -1) * norm[None, :, None] * gain[:, None, None]
    paired = torch.stack(rows.chunk(2, dim=1), dim=2)
    return paired.reshape(heads * size, -1)


def _balance(weights: dict[str, Tensor], first: str, second: str) -> None:
    """Give two matrices that are applied in a row the same size; their product stays.

    Behind a norm the size of a matrix means nothing, and some have grown far apart: without
    this, the first optimizer steps would destroy the small ones.
    """
    ratio = (weights[first].square().mean() / weights[second].square().mean()) ** 0.25
    weights[first] /= ratio
    weights[second] *= ratio


def converted(cfg: models.Config, weights: dict[str, Tensor], tokenizer: Tokenizer) -> nn.Module:
    """The `llama` model."""
    network = models.Transformer(cfg)
    network.load_state_dict(weights)
    gain = gains(network, tokenizer)
    target = models.Transformer(models.config("llama", cfg.vocab))
    out = {name: weights[name].clone() for name in target.state_dict()}
    for layer in range(cfg.layers):
        at = f"layers.{layer}."
        for part in "qk":
            norm = f"{at}attn.{part}_norm"
            name = f"{at}attn.{part}.weight"
            out[name] = _rotary_rows(weights[name], weights[f"{norm}.weight"], gain[norm])
        attn_post, ffn_post = f"{at}attn_post", f"{at}ffn_post"
        out[f"{at}attn.out.weight"] *= (weights[f"{attn_post}.weight"] * gain[attn_post])[:, None]
        _balance(out, f"{at}attn.v.weight", f"{at}attn.out.weight")
        scale = weights[f"{ffn_post}.weight"] * gain[ffn_post] / GELU_SLOPE
        out[f"{at}gate.weight"] *= GELU_SLOPE
        out[f"{at}down.weight"] *= scale[:, None]
        _balance(out, f"{at}up.weight", f"{at}down.weight")
    target.load_state_dict(out)
    return target


def main() -> None:
    """Read the command line and write a checkpoint that training resumes from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gemma", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    cfg, weights = export.load(args.gemma)
    target = converted(cfg, weights, Tokenizer.from_file(str(args.tokenizer)))
    state = target.state_dict()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {
            "config": asdict(models.config("llama", cfg.vocab)),
            "model": state,
            "raw": state,
            "optimizers": None,
            "step": 0,
            "seen": 0,
            "minutes": 0.0,
            "weights": {},
        },
        args.out,
    )


if __name__ == "__main__":
    main()
