"""The table of docs/crates.md: python3 docs/crates.py, in the clone's folder."""

import re
import tomllib
from pathlib import Path

TEST = re.compile(r"#\[cfg\((all\()?test\b")
PUBLIC = re.compile(r"\s*pub (fn|struct|enum|trait|const|type|mod|use)\b")


def without_tests(file):
    """The file's lines less its items under cfg(test), and the modules among these that are files.
    A module of tests that stands in the file is its end."""
    lines, modules, skip = [], set(), False
    for line in file.read_text().splitlines():
        skip = skip or bool(TEST.match(line))
        if not skip:
            lines.append(line)
        elif named := re.fullmatch(r"(?:pub(?:\(\w+\))? )?mod (\w+);", line):
            modules.add(named[1])
        elif re.match(r"(?:pub(?:\(\w+\))? )?mod \w+ {", line):
            break
        # An item ends at the margin, or with its only line.
        skip = skip and not (line == "}" or re.match(r"[^#\s/].*[;}]$", line))
    return lines, modules


def source(folder):
    """All lines of a crate's src, without its tests."""
    files = {file: without_tests(file) for file in sorted(folder.rglob("*.rs"))}
    tests = []
    for file, (_, modules) in files.items():
        inside = file.parent if file.stem in ("lib", "main", "mod") else file.with_suffix("")
        tests += [inside / name for name in modules]
    kept = (lines for file, (lines, _) in files.items()
            if not any(file == test.with_suffix(".rs") or test in file.parents for test in tests))
    return [line for lines in kept for line in lines]


def uses(manifest):
    return {name.removeprefix("napkin-") for name in manifest.get("dependencies", {}) if name.startswith("napkin-")}


crates = {path.parent.name: tomllib.loads(path.read_text()) for path in sorted(Path("crates").glob("*/Cargo.toml"))}
print("| crate | lines | public items | used by |\n|---|---:|---:|---|")
for name, manifest in crates.items():
    lines = source(Path("crates", name, "src"))
    users = ", ".join(user for user, theirs in crates.items() if name in uses(theirs))
    print(f"| `{name}` | {len(lines)} | {sum(map(bool, map(PUBLIC.match, lines)))} | {users or '-'} |")
