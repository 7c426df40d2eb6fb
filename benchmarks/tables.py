"""Put the figures of docs/benchmarks/*.json into the tables of a Markdown file.

    python benchmarks/tables.py docs/benchmarks.md

What stands between `<!-- table: NAME -->` and `<!-- end -->` becomes the table of NAME.json and the picture NAME.png;
other text stays.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from unilab.bench.result import skip_reasons

COLUMNS = {
    "backend": "", "algo": "algorithm", "task": "task", "num_envs": "envs", "workers": "workers", "device": "device",
    "updates_per_env_step": "updates per env step", "updates_per_s": "updates/s", "env_steps_per_s": "env steps/s",
    "spread": "spread", "ratio_to_default": "ratio to the default", "ratio_to_limit": "ratio to the limit",
    "overhead_us_per_env_step": "overhead per env step [us]", "overhead_ms_per_rollout": "overhead per rollout [ms]",
    "rollout_ms": "physics of a rollout [ms]", "efficiency": "efficiency",
    "projected_efficiency": "projected efficiency", "sliding_from_deg": "sliding begins between [degrees]",
    "analytic_deg": "analytic [degrees]", "acceleration_error": "error of the acceleration",
}  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """The rows of a result as a Markdown table, with the machine, the date and what was skipped below."""
    rows, machine = result["results"], result["machine"]
    names = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    lines = [f"| {' | '.join(COLUMNS[name] for name in names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows]
    skipped = skip_reasons(result)
    lines += ["", *(f"- Skipped: {each}." for each in skipped), ""] if skipped else [""]
    return "\n".join([*lines, f"{machine['cores_usable']} cores ({_processor(machine['cpu'])}), {result['date']}."])


def _processor(name: str) -> str:
    return name.replace("(R)", "").removesuffix(" Processor")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return " and ".join(f"{each:.2f}" for each in value) if isinstance(value, list) else str(value)


def main() -> None:
    page = Path(sys.argv[1])

    def filled(match: re.Match[str]) -> str:
        folder, name = page.with_suffix(""), match[1]
        figures, picture = folder / f"{name}.json", folder / f"{name}.png"
        text = table(json.loads(figures.read_text())) if figures.exists() else "Not measured yet."
        text += f"\n\n![{name}]({folder.name}/{picture.name})" if picture.exists() else ""
        return f"<!-- table: {name} -->\n{text}\n<!-- end -->"

    pattern = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
    page.write_text(pattern.sub(filled, page.read_text()))


if __name__ == "__main__":
    main()
