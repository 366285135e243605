"""``attnflow demo``: the three methods on an example small enough to check by hand."""

import argparse
import json
from typing import Any

import numpy as np

from attnflow import attention_flow, attention_rollout, min_cut, raw_attention

__all__ = ["add_parser", "run"]

TOKENS = ("[CLS]", "keys", "cabinet")
# Three layers of attention among three tokens: rows attend, columns are attended to.
ATTENTION = np.array(
    [
        [[0.00, 0.75, 0.25], [0.50, 0.50, 0.00], [0.00, 0.50, 0.50]],
        [[0.25, 0.25, 0.50], [0.00, 0.75, 0.25], [0.00, 0.75, 0.25]],
        [[0.50, 0.00, 0.50], [0.25, 0.25, 0.50], [0.50, 0.00, 0.50]],
    ]
)
POSITION = TOKENS.index("[CLS]")
CUT_TOKEN = TOKENS.index("cabinet")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "demo",
        help="print raw attention, rollout and flow of a small worked example",
        description="Print raw attention, rollout and flow of a small worked example.",
        epilog="example: attnflow demo --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0.
    """
    result = _compute()
    print(json.dumps(result, indent=2) if args.json else _table(result))
    return 0


def _compute() -> dict[str, Any]:
    raw = raw_attention(ATTENTION)[:, POSITION]
    rollout = attention_rollout(ATTENTION, positions=[POSITION])[:, 0]
    flow = attention_flow(ATTENTION, positions=[POSITION])[:, 0]
    cut = min_cut(ATTENTION, layer=-1, position=POSITION, token=CUT_TOKEN)
    return {
        "tokens": list(TOKENS),
        "position": POSITION,
        "layers": [
            {
                "layer": layer + 1,
                "raw": raw[layer].tolist(),
                "rollout": rollout[layer].tolist(),
                "flow": flow[layer].tolist(),
            }
            for layer in range(len(ATTENTION))
        ],
        "min_cut": {
            "layer": len(ATTENTION),
            "token": CUT_TOKEN,
            "value": float(cut.value),
            "edges": [
                {
                    "layer": int(layer),
                    "position": int(position),
                    "to_position": int(to_position),
                    "capacity": float(capacity),
                }
                for layer, position, to_position, capacity in cut.edges
            ],
        },
    }


def _table(result: dict[str, Any]) -> str:
    source = TOKENS[POSITION]
    lines = [
        f"From which tokens does {source} get its information?",
        "",
        f"{'':<18}" + "".join(f"{token:>9}" for token in TOKENS),
    ]
    for row in result["layers"]:
        for method in ("raw", "rollout", "flow"):
            title = f"layer {row['layer']}" if method == "raw" else ""
            values = "".join(f"{value:>9.3f}" for value in row[method])
            lines.append(f"{title:<9}{method:<9}{values}")
    cut = result["min_cut"]
    lines += [
        "",
        f"A row says how much {source} of that layer gets from each token: raw attention and",
        "rollout as shares that sum to 1, flow as the most that all paths to that token can carry.",
        "",
        f"The flow from {source} in layer {cut['layer']} to {TOKENS[cut['token']]}, "
        f"{cut['value']:.3f}, is limited by:",
    ]
    for edge in cut["edges"]:
        lines.append(
            f"  {edge['capacity']:.3f}  layer {edge['layer']}, "
            f"{TOKENS[edge['position']]} to {TOKENS[edge['to_position']]}"
        )
    return "\n".join(lines)
