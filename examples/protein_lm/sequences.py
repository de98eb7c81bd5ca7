# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Protein sequences: synthetic ones with real residue frequencies, or those of a FASTA file.

amino_acids.csv has the amino-acid composition of UniProtKB/Swiss-Prot, in percent, as published
with the statistics of its releases. A synthetic protein is a row of domains, as real ones are:
copies of a few ancestors in which some residues have mutated. Ancestors and mutations follow the
composition.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
from pathlib import Path

TABLE = Path(__file__).parent / "amino_acids.csv"
DOMAINS, MUTATED = 24, 0.05  # ancestors, and the part of their residues that changes in a copy


def composition() -> dict[str, float]:
    """The part that each residue has of all."""
    with TABLE.open(newline="") as file:
        percent = {row["residue"]: float(row["percent"]) for row in csv.DictReader(file)}
    total = sum(percent.values())
    return {residue: share / total for residue, share in percent.items()}


def entropy() -> float:
    """Bits per residue for someone who knows the composition and nothing else."""
    return -sum(share * math.log2(share) for share in composition().values())


def synthetic(count: int, seed: int = 0) -> list[str]:
    """Proteins of two to five domains behind the methionine that translation starts with."""
    rng = random.Random(seed)
    shares = composition()
    lengths = [rng.randint(25, 60) for _ in range(DOMAINS)]
    pool = [residue for residue in shares for _ in range(round(shares[residue] * sum(lengths)) + 1)]
    rng.shuffle(pool)  # ancestors together have the composition, which single draws would miss
    letters = iter(pool)
    domains = [list(itertools.islice(letters, length)) for length in lengths]

    def copy(domain: list[str]) -> str:
        fresh = rng.choices(list(shares), list(shares.values()), k=len(domain))
        return "".join(
            new if rng.random() < MUTATED else old for old, new in zip(domain, fresh, strict=True)
        )

    return [
        "M" + "".join(copy(rng.choice(domains)) for _ in range(rng.randint(2, 5)))
        for _ in range(count)
    ]


def read_fasta(path: str) -> list[str]:
    """The sequences of a FASTA file, in capitals, without the stop sign at the end."""
    records: list[list[str]] = []
    for line in Path(path).read_text().splitlines():
        if line.startswith(">"):
            records.append([])
        elif line.strip() and not line.startswith(";"):
            if not records:
                raise ValueError(f"{path}: a FASTA file starts with a line of '>', got {line!r}")
            records[-1].append(line.strip().upper().rstrip("*"))
    found = ["".join(parts) for parts in records]
    if not any(found):
        raise ValueError(f"{path}: no sequence")
    return [sequence for sequence in found if sequence]
