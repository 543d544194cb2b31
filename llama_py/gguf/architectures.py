"""Tables for ``rules``: what the graph of each architecture in llama.cpp asserts.

Taken from ``src/models/*.cpp`` of the pinned llama.cpp. An architecture that is missing here is
checked less strictly, and never refused by mistake.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DELTA_NET",
    "EQUAL_HEADS",
    "HEADS_ALONE",
    "MAMBA2",
    "NEEDED",
    "ROTATES_WHOLE_HEAD",
    "SQUARE_QUERIES",
]

_CONV_BIAS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "ssm_conv1d.weight": (("ssm_conv1d.bias",),)
}

#: For an architecture and a tensor of a layer: for each entry, one of these must be beside it.
NEEDED: Final[dict[str, dict[str, tuple[tuple[str, ...], ...]]]] = {
    "granitehybrid": _CONV_BIAS,
    "nemotron_h": _CONV_BIAS,
    "nemotron_h_moe": _CONV_BIAS,
    "hy_v3": {"ffn_down_exps.weight": (("ffn_up_exps.weight", "ffn_gate_up_exps.weight"),)},
    "glm-dsa": {
        "indexer.k_norm.weight": (
            ("indexer.proj.weight",),
            ("indexer.attn_k.weight",),
            ("indexer.attn_q_b.weight",),
        )
    },
}

#: Graphs with gated delta nets: ``S_k == S_v`` and ``H_v % H_k == 0``.
DELTA_NET: Final = frozenset({"qwen3next", "qwen35", "qwen35moe", "qwen4exp"})

#: Graphs with mamba2 mixers: ``d_inner % n_head == 0`` and ``d_inner % n_group == 0``.
MAMBA2: Final = frozenset({"mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"})

#: Graphs with ``GGML_ASSERT(n_embd_head == n_rot)``, and keys as long as values.
ROTATES_WHOLE_HEAD: Final = frozenset(
    """
    apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek
    dots1 dream ernie4_5 exaone exaone-moe exaone4 falcon granite granite_swa granitemoe
    graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2
    llada llada-moe llama llama-embed llama4 maincoder mellum minicpm mistral3 olmo olmo2
    olmoe orion pangu-embedded plamo pockettts qwen2 qwen2moe qwen2vl qwen3 qwen3moe
    qwen3vl qwen3vlmoe rnd1 seed_oss smallthinker smollm3 starcoder2 talkie xverse
    """.split()  # noqa: SIM905
)

#: Graphs whose queries have as many elements as the embeddings.
SQUARE_QUERIES: Final = frozenset(
    """
    arctic baichuan bert chameleon codeshell cohere2 command-r deepseek dream eurobert
    grok internlm2 jamba jina-bert-v2 jina-bert-v3 lfm2 lfm2moe llada-moe nemotron
    nomic-bert-moe nomic-bert olmo olmo2 olmoe orion phi2 phi3 phimoe plamo pockettts
    qwen2 qwen2moe qwen2vl stablelm starcoder2 xverse
    """.split()  # noqa: SIM905
)

#: Further graphs with ``GGML_ASSERT(n_embd_head == hparams.n_embd_head_k())``.
EQUAL_HEADS: Final = frozenset(
    """
    afmoe bailingmoe2 bert bitnet bloom chatglm cohere2 command-r dflash eagle3 eurobert
    glm4 glm4moe gpt2 gptneox granitehybrid jais jina-bert-v2 jina-bert-v3 k2-horizon laguna maple
    minimax-01 minimax-m2 minimax-m3 modern-bert mpt muse-glimmer nanbeige nemotron
    nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe openelm phi2 phi3 phimoe
    qwen qwen35 qwen35moe qwen3next qwen4exp refact spark2_5 stablelm starcoder t5
    t5encoder
    """.split()  # noqa: SIM905
)

#: Of these, a file may have next-token heads (MTP) and nothing before them, which llama.cpp loads
#: as a part of another model. Each with a tensor that the first layer of a whole model has.
HEADS_ALONE: Final = dict.fromkeys(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe glm5-next hy_v3 mimo2
    nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next step35
    """.split(),  # noqa: SIM905
    "attn_norm",
) | {"qwen4exp": "hc_attn_norm"}
