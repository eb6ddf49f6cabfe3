"""What is put in the place of patterns in a module's code, besides normalisations: slices and sums with dropout."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.nn import functional as F

from seatrial.train.kernels.dropadd import drop_add
from seatrial.train.kernels.unbind import unbind
from seatrial.train.reading import hooked

SUMS = (operator.add, operator.iadd, torch.add)


def replace_slices(graph: Graph) -> int:
    """``q, k, v = something`` of which nothing else is read: how many were replaced."""
    count = 0
    for node in list(graph.nodes):
        users = list(node.users)
        numbers = [user.args[1] for user in users if _is_item(user, node)]
        if len(users) < 2 or numbers != list(range(len(users))):
            continue
        if node.op not in ("call_method", "call_function") or _is_item(node, node.args[0] if node.args else None):
            continue
        with graph.inserting_after(node):
            parts = graph.call_function(unbind, (node, len(users)))
        for user in users:
            user.replace_input_with(node, parts)
        count += 1
    return count


def replace_drops(graph: Graph, children: dict[str, nn.Module]) -> int:
    """``x + dropout(y)``: how many were replaced."""
    count = 0
    for node in list(graph.nodes):
        found = _dropped(node, children)
        following = next(iter(node.users)) if len(node.users) == 1 else None
        if found is None or following is None or following.target not in SUMS or following.op != "call_function":
            continue
        if len(following.args) != 2 or following.kwargs:
            continue
        first, second = following.args
        other = first if second is node else second
        in_place = following.target is operator.iadd
        if not isinstance(other, Node) or other is node or (in_place and first is not node):
            continue
        with graph.inserting_before(following):
            added = graph.call_function(drop_add, (other, *found))
        following.replace_all_uses_with(added)
        graph.erase_node(following)
        graph.erase_node(node)
        count += 1
    return count


def _is_item(node: Any, of: Any) -> bool:
    return (
        isinstance(node, Node)
        and node.op == "call_function"
        and node.target is operator.getitem
        and node.args[0] is of
        and isinstance(node.args[1], int)
    )


def _dropped(node: Node, children: dict[str, nn.Module]) -> tuple[Node, float] | None:
    """What is dropped out of, and the probability, where that is known."""
    if node.op == "call_module":
        layer = children.get(str(node.target))
        if type(layer) is not nn.Dropout or layer.inplace or hooked(layer) or not 0 < layer.p < 1:
            return None
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], Node):
            return None
        return node.args[0], layer.p
    if node.op != "call_function" or node.target is not F.dropout:
        return None
    given = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | node.kwargs
    probability, value = given.get("p", 0.5), given.get("input")
    if given.get("training", True) is not True or given.get("inplace") or not isinstance(value, Node):
        return None
    return (value, float(probability)) if isinstance(probability, float) and 0 < probability < 1 else None
