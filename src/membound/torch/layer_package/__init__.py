# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A layer package as Hugging Face's `kernels` library loads it from disk: this folder.

`membound.torch.huggingface.kernel_mapping()` names it; metadata.json is what that library reads.
"""

from membound.torch.layer_package import layers

__all__ = ["layers"]
