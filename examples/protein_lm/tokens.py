# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces of proteins: a byte-pair tokenizer, trained, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from sequences import composition
from tokenizers import Tokenizer, decoders, models, trainers

END, UNKNOWN = "<end>", "?"


def train_tokenizer(proteins: list[str], vocab: int, path: Path) -> Tokenizer:
    """Byte-pair encoding: the pairs of pieces that occur most often become pieces themselves."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()  # no spaces between pieces
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, UNKNOWN],
        initial_alphabet=list(composition()),
        max_token_length=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator(proteins, trainer)
    tokenizer.save(str(path))
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, proteins: list[str]) -> torch.Tensor:
    """One long row of ids, each protein between two ends."""
    end = tokenizer.token_to_id(END)
    encoded = (one.ids for one in tokenizer.encode_batch(proteins))
    return torch.tensor([end, *(token for ids in encoded for token in (*ids, end))])
