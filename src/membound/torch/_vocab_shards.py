# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy and embedding of DTensors whose vocabulary is sharded.

Every rank has some columns of each row of logits, and some rows of an embedding's table.

Each rank runs the kernels on its own columns. One all-reduce carries 12 to 20 bytes a row and rank,
each rank's in its own slot, from which all know the loss and the log-sum-exp of whole rows. The
gradient of logits needs none; that of x, a partial sum, is reduced by DTensor as of any layer.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from membound import _core
from membound.torch._last_layer import row_gradients, row_losses

_NO_LABEL = -100


class VocabShard:
    """The columns of this rank, as torch.chunk splits them over one mesh axis."""

    def __init__(self, mesh: Any, at: int, vocab: int) -> None:
        self._mesh, self._at, self.vocab = mesh, at, vocab
        self.ranks, self.rank = mesh.size(at), mesh.get_local_rank(at)
        self.width = -(-vocab // self.ranks)
        self.first = min(self.width * self.rank, vocab)
        self.count = min(self.width, vocab - self.first)

    def own(self, labels: Any, ignore_index: int) -> tuple[Any, Any]:
        """Which labels are ours, and labels for the kernels: 0 for those of other ranks."""
        ignored = labels == ignore_index
        own = (labels >= self.first) & (labels < self.first + self.count) & ~ignored
        local = torch.where(own, labels - self.first, 0)
        return own, torch.where(ignored, _NO_LABEL, local)

    def gathered(self, *of_rows: Any) -> Any:
        """What each rank has of its rows, as (kinds, ranks, rows), by one all-reduce."""
        from torch.distributed import _functional_collectives as collectives

        ours = torch.stack(of_rows)
        slots = ours.new_zeros((len(ours), self.ranks, ours.shape[1]))
        slots[:, self.rank] = ours
        return collectives.all_reduce(slots, "sum", (self._mesh, self._at))


class _Whole:
    """Losses, lse and entropies of whole rows.

    given: cross_entropy's ignore_index, label_smoothing, z_loss and softcap.
    """

    def __init__(self, shard: VocabShard, labels: Any, class_weight: Any, given: Any, kind: Any):
        self.shard, self.labels = shard, labels
        self.ignore_index, self.smoothing, self.z_loss, self.softcap = given
        self.ignored = labels == self.ignore_index
        outside = (labels < 0) | (labels >= shard.vocab)
        weights = class_weight
        if weights is None:
            weights = torch.ones(shard.vocab, dtype=kind, device=labels.device)
        self.weights = weights.to(kind)
        chosen = self.weights[torch.where(outside, 0, labels)]
        chosen = torch.where(outside, float("nan"), chosen)
        self.chosen = torch.where(self.ignored, 0.0, chosen)
        self.own_weights = self.weights.narrow(0, shard.first, shard.count)
        self.local = {"ignore_index": _NO_LABEL, "softcap": self.softcap}
        self.own, self.own_labels = shard.own(labels, self.ignore_index)

    def results(self, loss: Any, lse: Any, entropy: Any, distance: Any) -> tuple[Any, Any, Any]:
        """The loss, lse and entropy of rows, from those of our columns; the last two may be None.

        distance: ``sum(w * (lse - l))`` over our columns, for label smoothing.
        """
        shard = self.shard
        kinds = [loss, lse[:, 0], lse[:, 1], entropy, distance]
        there = [one is not None for one in kinds]
        found = iter(shard.gathered(*(one for one in kinds if one is not None)))
        loss, tops, lows, entropies, distances = (next(found) if one else None for one in there)
        top = tops.max(0).values
        low = (tops - top + lows).logsumexp(0)
        later = (top - tops) + (low - lows)  # how much the row's lse exceeds that of each rank
        rank = (self.labels // shard.width).clamp(0, shard.ranks - 1)[None]
        of_label = loss.gather(0, rank)[0] + later.gather(0, rank)[0]
        whole = (1 - self.smoothing) * self.chosen * of_label
        if self.z_loss:
            whole = whole + self.z_loss * self.chosen * (top + low).square()
        if self.smoothing:
            of_ranks = [one.sum() for one in self.weights.split(shard.width)]
            more = sum(w * later[at] for at, w in enumerate(of_ranks))
            whole = whole + self.smoothing / shard.vocab * (distances.sum(0) + more)
        whole = torch.where(self.ignored, 0.0, whole)
        if entropy is not None:  # of a mixture of the ranks' distributions
            shares = (-later).exp()
            entropy = (shares * entropies + torch.special.entr(shares)).sum(0)
            entropy = torch.where(self.ignored, 0.0, entropy)
        return whole, torch.stack((top, low), -1), entropy

    def write_gradient(
        self, dloss: Any, logits: Any, at: Any, lse: Any, of_entropy: Any, out: Any
    ) -> None:
        """That of our columns of rows `at`; out may be logits.

        The kernel takes each label to be a column of ours. Its element is computed apart, also
        because its factor is another with class weights and the like.
        """
        labels, own, wide = self.own_labels[at], self.own[at], lse.dtype
        of_label = (1 - self.smoothing) * self.chosen[at]
        factor = of_label + 2 * self.z_loss * self.chosen[at] * lse.sum(-1)
        share = self.smoothing / self.shard.vocab
        if self.smoothing:
            factor = factor + share * self.weights.sum()
        column = labels.clamp(min=0).long()[:, None]
        value, slope = self._capped(logits.gather(1, column).to(wide))
        p = (value - lse[:, :1] - lse[:, 1:]).exp()
        value = p * factor[:, None] - torch.where(own, of_label, 0.0)[:, None]
        if self.smoothing:
            value = value - share * self.own_weights[column]
        value = dloss[:, None] * value
        if of_entropy:
            more = torch.special.xlogy(p, p) + p * of_entropy["entropy"][:, None]
            value = value - of_entropy["dentropy"][:, None] * more
        value = torch.where(self.ignored[at][:, None], 0.0, value * slope)
        less = None
        if self.smoothing:
            counted = torch.where(self.ignored[at], 0.0, share * dloss)
            _, slopes = self._capped(logits)
            less = (counted[:, None] * self.own_weights).to(logits.dtype).mul_(slopes)
        given = dloss * factor, logits, labels, lse
        _core.cross_entropy_backward(*given, dlogits=out, **of_entropy, **self.local)
        if less is not None:
            out.sub_(less)
        out.scatter_(1, column, value.to(out.dtype))

    def _capped(self, values: Any) -> tuple[Any, Any]:
        if self.softcap is None:
            return values, 1.0
        squashed = (values / self.softcap).tanh()
        return self.softcap * squashed, 1 - squashed.square()


def _nothing(x: Any) -> tuple[Any, Any, Any]:
    """Loss, entropy and lse of no columns."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    zeros = x.new_zeros(x.shape[:-1].numel(), dtype=kind)
    return zeros, zeros, torch.stack((zeros - torch.inf, zeros), -1)


class _Rows(torch.autograd.Function):
    """The loss and the entropy of rows of a last layer; the backward makes its logits again."""

    @staticmethod
    def forward(ctx, x, weight, bias, labels, class_weight, shard, chunk_rows, *options):
        ignore_index, smoothing, z_loss, softcap, temperature, with_entropy = options
        capped = None if softcap is None else softcap / temperature
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        given = ignore_index, smoothing, z_loss, capped
        whole = _Whole(shard, labels.reshape(-1), class_weight, given, kind)
        own_labels = whole.own_labels.view(labels.shape)

        def losses(classes, smoothing, with_entropy):
            if not shard.count:
                return _nothing(x)
            found = row_losses(
                x, weight, bias, own_labels, classes, chunk_rows, _NO_LABEL, smoothing, 0.0,
                softcap, False, temperature, with_entropy,
            )  # fmt: skip
            return found[0].view(-1), found[1].view(-1), found[2].view(-1, 2)

        loss, entropy, lse = losses(None, 0.0, with_entropy)
        distance = shard.count * losses(whole.own_weights, 1.0, False)[0] if smoothing else None
        loss, lse, entropy = whole.results(loss, lse, entropy if with_entropy else None, distance)
        ctx.whole, ctx.options = whole, (chunk_rows, softcap, temperature, with_entropy)
        ctx.save_for_backward(x, weight, bias, labels, lse, entropy)
        entropy = torch.zeros_like(loss) if entropy is None else entropy
        return loss.view(labels.shape), entropy.view(labels.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss, dentropy):
        x, weight, bias, labels, lse, entropy = ctx.saved_tensors
        chunk_rows, softcap, temperature, with_entropy = ctx.options
        whole, wanted = ctx.whole, ctx.needs_input_grad[:3]
        made = (
            torch.zeros_like(t, memory_format=torch.contiguous_format) if want else None
            for t, want in zip((x, weight, bias), wanted, strict=True)
        )
        if whole.shard.count:
            saved = x, weight, bias, whole.own_labels.view(labels.shape), None, entropy, lse
            options = (
                chunk_rows, _NO_LABEL, 0.0, 0.0, softcap, False, temperature, with_entropy,
            )  # fmt: skip
            grads = dloss, dentropy
            made = row_gradients(grads, saved, options, wanted, whole.write_gradient)
        return (*made, *[None] * 10)


class _Logits(torch.autograd.Function):
    """The loss of rows of logits."""

    @staticmethod
    def forward(ctx, logits, labels, class_weight, shard, *options):
        flat = logits.reshape(labels.numel(), logits.shape[-1])
        loss, _, lse = _nothing(logits)
        whole = _Whole(shard, labels.reshape(-1), class_weight, options, loss.dtype)
        distance = loss if options[1] else None
        if shard.count:
            given = flat, whole.own_labels
            loss, lse = _core.cross_entropy(*given, **whole.local, return_lse=True)
            if options[1]:
                more = whole.local | {"label_smoothing": 1.0}
                distance = shard.count * _core.cross_entropy(*given, whole.own_weights, **more)
        loss, lse, _ = whole.results(loss, lse, None, distance)
        ctx.whole = whole
        ctx.save_for_backward(logits, lse)
        return loss.view(labels.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        logits, lse = ctx.saved_tensors
        found = torch.empty_like(logits, memory_format=torch.contiguous_format)
        if ctx.whole.shard.count:
            flat = logits.reshape(dloss.numel(), logits.shape[-1])
            out, every = found.view(flat.shape), slice(None)
            ctx.whole.write_gradient(dloss.reshape(-1), flat, every, lse, {}, out)
        return (found, *[None] * 7)


# --- DTensors ---


def has_sharded_vocab(weight: Any) -> bool:
    """Whether a last layer's weight is a DTensor with a sharded vocabulary, its first axis."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor, Shard

    return isinstance(weight, DTensor) and Shard(0) in weight.placements


def _axis_of(op: str, name: str, tensor: Any, dim: int) -> int:
    """The mesh axis that shards an axis of a tensor."""
    from torch.distributed.tensor import Shard

    found = [at for at, p in enumerate(tensor.placements) if p == Shard(dim)]
    if len(found) != 1:
        raise ValueError(
            f"{op}: argument '{name}' must have its vocabulary sharded over one mesh axis, got "
            f"{len(found)}"
        )
    return found[0]


def _placed(op: str, name: str, tensor: Any, mesh: Any, placements: Any) -> Any:
    """A DTensor with these placements; a plain tensor is taken to be the same on every rank."""
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(tensor, DTensor):
        tensor = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    if tensor.device_mesh != mesh:
        raise ValueError(f"{op}: argument '{name}' must be a DTensor on the mesh of the vocabulary")
    return tensor.redistribute(placements=placements)


def _on_every_rank(op: str, name: str, tensor: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import Replicate

    if tensor is None:
        return None
    return _placed(op, name, tensor, mesh, [Replicate()] * mesh.ndim)


@torch._disable_dynamo  # torch.compiler.disable without the import of Dynamo
def sharded_embedding(ids, weight, position_ids, position_weight, *options):
    """The rows of a table, as partial sums: each rank looks up the tokens of its own part."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    from membound.torch._embedding import embedding

    op = "embedding"
    padding_idx, scale, vocab_start, validate, dtype = options
    mesh, at = weight.device_mesh, _axis_of(op, "weight", weight, 0)
    _refuse_plain(op, "ids", ids)
    counted = position_weight is not None and position_ids is None
    axes = [Shard(axis) for axis in range(ids.ndim - counted)]
    rows = [p if p in axes and axis != at else Replicate() for axis, p in enumerate(ids.placements)]
    of_table = [Partial() if p.is_shard() else p for p in rows]
    parts = [Shard(0) if axis == at else Replicate() for axis in range(mesh.ndim)]
    of_parts = [Shard(0) if axis == at else p for axis, p in enumerate(of_table)]
    own_ids = _placed(op, "ids", ids, mesh, rows).to_local()
    own = _placed(op, "weight", weight, mesh, parts).to_local(grad_placements=of_parts)
    if position_ids is not None:
        position_ids = _placed(op, "position_ids", position_ids, mesh, rows).to_local()
    if position_weight is not None:
        table = _on_every_rank(op, "position_weight", position_weight, mesh)
        summed = [Partial() if axis == at else p for axis, p in enumerate(of_table)]
        position_weight = table.to_local(grad_placements=summed)
    if validate:  # ids of other ranks are right as well
        column = own.new_empty((weight.shape[0], 1))
        _core.embedding(own_ids, column, vocab_start=vocab_start, validate=True)
    if not len(own):  # more ranks than parts: a row that no id names
        own = torch.nn.functional.pad(own, (0, 0, 0, 1))
    found = embedding(
        own_ids, own, position_ids=position_ids, position_weight=position_weight,
        padding_idx=padding_idx, scale=scale, dtype=dtype,
        vocab_start=vocab_start + VocabShard(mesh, at, weight.shape[0]).first,
    )  # fmt: skip
    placements = [Partial() if axis == at else p for axis, p in enumerate(rows)]
    shape = torch.Size((*ids.shape, weight.shape[1]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(found, mesh, placements, run_check=False, shape=shape, stride=stride)


def _refuse_plain(op: str, name: str, tensor: Any) -> None:
    """FSDP2 shards weights as a vocabulary is sharded, and its ranks differ in what they read."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        raise TypeError(
            f"{op}: argument '{name}' must be a DTensor where that is what 'weight' is, got a "
            f"tensor; DTensor.from_local({name}, mesh, [Replicate()]) if every rank has the same "
            "rows, or weight.full_tensor() if not"
        )


def _row_placements(tensor: Any, at: int, mesh: Any) -> list[Any]:
    """Those of a tensor's rows; the mesh axis `at`, which shards the vocabulary, has all rows."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(tensor, DTensor):
        return [Replicate()] * mesh.ndim
    rows = [Shard(axis) for axis in range(tensor.ndim - 1)]
    return [
        p if p in rows and axis != at else Replicate() for axis, p in enumerate(tensor.placements)
    ]


def _as_rows(local: Any, like: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape,
        stride=like.stride(),
    )  # fmt: skip


def _refuse_validate(op: str, validate: bool) -> None:
    if validate:
        raise ValueError(
            f"{op}: argument 'validate' must be False where the vocabulary is sharded, got True"
        )


@torch._disable_dynamo  # torch.compiler.disable without the import of Dynamo
def sharded_row_losses(op, x, weight, bias, labels, class_weight, chunk_rows, *options):
    """The losses and entropies of rows, as DTensors; also labels and class weights as DTensors."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    *options, validate, temperature, with_entropy = options
    _refuse_validate(op, validate)
    _refuse_plain(op, "x", x)
    mesh, at = weight.device_mesh, _axis_of(op, "weight", weight, 0)
    rows = _row_placements(x, at, mesh)
    x, labels = (_placed(op, n, t, mesh, rows) for n, t in (("x", x), ("labels", labels)))
    layer = [Shard(0) if axis == at else Replicate() for axis in range(mesh.ndim)]
    summed = [Partial() if p.is_shard() else p for p in rows]
    of_x = [Partial() if axis == at else p for axis, p in enumerate(rows)]
    of_layer = [Shard(0) if axis == at else p for axis, p in enumerate(summed)]
    own_weight = _placed(op, "weight", weight, mesh, layer).to_local(grad_placements=of_layer)
    own_bias = bias
    if bias is not None:
        own_bias = _placed(op, "bias", bias, mesh, layer).to_local(grad_placements=of_layer)
    class_weight = _on_every_rank(op, "class_weight", class_weight, mesh)
    classes = None if class_weight is None else class_weight.to_local()
    found = _Rows.apply(
        x.to_local(grad_placements=of_x), own_weight, own_bias, labels.to_local(), classes,
        VocabShard(mesh, at, weight.shape[0]), chunk_rows, *options, temperature, with_entropy,
    )  # fmt: skip
    losses, entropies = (_as_rows(one, labels) for one in found)
    return losses, entropies, labels, class_weight


@torch._disable_dynamo
def sharded_cross_entropy(logits, labels, weight, *options):
    """The losses of rows of logits whose columns are sharded, as a DTensor."""
    op = "cross_entropy"
    *options, validate = options
    _refuse_validate(op, validate)
    mesh, at = logits.device_mesh, _axis_of(op, "logits", logits, logits.ndim - 1)
    rows = _row_placements(logits, at, mesh)
    labels = _placed(op, "labels", labels, mesh, rows)
    placements = [logits.placements[at] if axis == at else p for axis, p in enumerate(rows)]
    local = logits.redistribute(placements=placements).to_local(grad_placements=placements)
    classes = _on_every_rank(op, "weight", weight, mesh)
    classes = None if classes is None else classes.to_local()
    shard = VocabShard(mesh, at, logits.shape[-1])
    return _as_rows(_Logits.apply(local, labels.to_local(), classes, shard, *options), labels)
