# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Proteins from a model that train.py has left in a folder, as FASTA.

python examples/protein_lm/sample.py --folder protein_run --start MKV --count 3
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from model import ProteinModel
from tokenizers import Tokenizer
from tokens import END


def grow(
    folder: Path, start: str, count: int, seed: int, temperature: float = 0.8, most: int = 120
) -> Iterator[str]:
    """Yield proteins that begin with start, of at most so many tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = ProteinModel.load(folder / "model.pt")
    generator = torch.Generator().manual_seed(seed)
    end = tokenizer.token_to_id(END)
    ids = [end, *tokenizer.encode(start).ids]
    for _ in range(count):
        grown = model.sample(ids, end, most, temperature, generator)
        yield tokenizer.decode(grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("protein_run"))
    parser.add_argument("--start", default="M", help="the first residues")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--most", type=int, default=120, help="tokens of a protein, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    proteins = grow(
        options.folder,
        options.start,
        options.count,
        options.seed,
        options.temperature,
        options.most,
    )
    for at, protein in enumerate(proteins, 1):
        print(f">sampled {at}\n{protein}", flush=True)


if __name__ == "__main__":
    main()
