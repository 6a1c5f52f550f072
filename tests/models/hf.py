"""Models of Hugging Face transformers, made from configurations: random weights, no downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch.utils._pytree import tree_leaves

from tests.models.training import Program, Side, train

PROGRAMS: dict[str, Program] = {}

TINY = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def ids(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, 64, (batch, length))


def trained(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> Program:
    """Trains on inputs that hold labels, then looks at everything that the model returns."""

    def run(side: Side) -> Any:
        model = side(make())
        batch = inputs()
        found = train(model, lambda _: model(**batch).loss)
        model.eval()
        with torch.no_grad():
            leaves = tree_leaves(model(**batch).to_tuple())  # (tensors, and caches of keys)
        return [*found, [x for x in leaves if isinstance(x, torch.Tensor)]]

    return run


def generated(make: Callable[[], Any], inputs: Callable[[], dict[str, Any]]) -> Program:
    """Ids, greedy, sampled, and by beams; all from one model."""

    def run(side: Side) -> Any:
        model = side(make()).eval()
        model.generation_config.max_length = None
        model.config.output_router_logits = False
        batch = inputs()
        greedy = model.generate(**batch, max_new_tokens=6, do_sample=False)
        sampled = model.generate(
            **batch, max_new_tokens=6, do_sample=True, top_k=10, top_p=0.9, temperature=0.8
        )
        beams = model.generate(**batch, max_new_tokens=5, num_beams=3, do_sample=False)
        return [greedy, sampled, beams]

    return run


def labelled(labels: torch.Tensor | None = None) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        tokens = ids()
        mask = torch.ones_like(tokens)
        mask[0, :3] = 0
        return {"input_ids": tokens, "attention_mask": mask,
                "labels": tokens if labels is None else labels}  # fmt: skip

    return inputs


def prompt() -> dict[str, Any]:
    tokens = ids(2, 5)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def llama() -> Any:
    config = hf.LlamaConfig(**TINY, **SPECIAL, num_key_value_heads=2)
    return hf.LlamaForCausalLM(config)


def mixtral() -> Any:
    config = hf.MixtralConfig(
        **TINY, **SPECIAL, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        output_router_logits=True, sliding_window=None,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config)


def gpt2() -> Any:
    config = hf.GPT2Config(**SPECIAL, vocab_size=64, n_positions=64, n_embd=16, n_layer=2, n_head=4)
    return hf.GPT2LMHeadModel(config)


def bert() -> Any:
    return hf.BertForSequenceClassification(hf.BertConfig(**TINY, num_labels=3))


def t5() -> Any:
    config = hf.T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def vit() -> Any:
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        image_size=16, patch_size=4, num_labels=3,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def whisper() -> Any:
    config = hf.WhisperConfig(
        **SPECIAL, vocab_size=64, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_source_positions=20, max_target_positions=32,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def mamba() -> Any:
    config = hf.MambaConfig(
        **SPECIAL, vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2
    )
    return hf.MambaForCausalLM(config)


def text() -> dict[str, Any]:
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens}


def images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


def sounds() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40)}


PROGRAMS |= {
    "llama": trained(llama, labelled()),
    "mixtral": trained(mixtral, labelled()),
    "gpt2": trained(gpt2, labelled()),
    "bert": trained(bert, labelled(torch.tensor([0, 2]))),
    "t5": trained(t5, labelled()),
    "vit": trained(vit, images),
    "whisper": trained(whisper, lambda: {**sounds(), "labels": ids()}),
    "mamba": trained(mamba, text),
    "llama generates": generated(llama, prompt),
    "mixtral generates": generated(mixtral, prompt),
    "gpt2 generates": generated(gpt2, prompt),
    "t5 generates": generated(t5, prompt),
    "whisper generates": generated(whisper, sounds),
    "mamba generates": generated(mamba, lambda: {"input_ids": ids(2, 5)}),
}  # fmt: skip
