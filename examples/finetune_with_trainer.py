# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Train a small Llama with transformers' Trainer or TRL's SFTTrainer, as it is and patched.

    python examples/finetune_with_trainer.py --trainer trl --lora

The model comes from a configuration, with random weights; the text is synthetic, one token for each
character. Needs torch, transformers and accelerate; datasets and trl for SFTTrainer, peft for
--lora.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
import transformers
from finetune_llama import sentences

import membound.torch as mt


def build(options: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=128,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config)
    if options.lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    return model


def character_tokenizer() -> Any:
    """A tokenizer of one token for each character, which SFTTrainer asks for."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    ids = {chr(code): code for code in range(1, 128)} | {"<pad>": 0}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token=chr(3)
    )


def trainer_of(model: Any, rows: torch.Tensor, options: argparse.Namespace, folder: str) -> Any:
    common = {
        "output_dir": folder, "max_steps": options.steps, "per_device_train_batch_size": 4,
        "learning_rate": 1e-3, "logging_steps": 1, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "use_cpu": options.device == "cpu",
    }  # fmt: skip
    if options.trainer == "transformers":
        data = [{"input_ids": row, "labels": row} for row in rows]
        arguments = transformers.TrainingArguments(**common)
        return transformers.Trainer(model=model, args=arguments, train_dataset=data)
    import datasets
    import trl

    texts = ["".join(map(chr, row)) for row in rows.tolist()]
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**common),
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=character_tokenizer(),
    )


def losses(options: argparse.Namespace, patched: bool) -> list[float]:
    model = build(options)
    if patched:
        print(mt.patch(model))
    text = sentences(400, seed=1)
    rows = text[: len(text) // options.length * options.length].view(-1, options.length)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, rows, options, folder)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", choices=("transformers", "trl"), default="transformers")
    parser.add_argument("--lora", action="store_true", help="train adapters of PEFT alone")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here)
    options = parser.parse_args()
    plain, patched = (losses(options, with_ours) for with_ours in (False, True))
    print(f"loss as it is {plain[0]:.4f} to {plain[-1]:.4f} in {len(plain)} steps")
    print(f"loss patched  {patched[0]:.4f} to {patched[-1]:.4f}")
    apart = max(abs(a - b) / b for a, b in zip(patched, plain, strict=True))
    print(f"the losses are at most {apart:.3g} apart, relative")


if __name__ == "__main__":
    main()
