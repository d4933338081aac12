"""`pd-handoff protos`: the schema as files, for compilers of other languages."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pd_handoff
from pd_handoff.cli import output

HELP = "write the .proto files, for clients in other languages"
_SET = "pd_handoff.v1.binpb"


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own options."""
    parser.add_argument("--out", required=True, metavar="DIR", help="made if it is not there; give it to protoc -I")


def run(args: argparse.Namespace) -> None:
    """Copies the files and says which. Raises OSError."""
    out = Path(args.out)
    written = []
    for root in _roots():
        for path in sorted(root.rglob("*.proto")):
            place = out / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            written.append(str(place))
    shutil.copyfile(Path(pd_handoff.__file__).parent / "v1" / _SET, out / _SET)
    written.append(str(out / _SET))
    if args.json:
        return output.show_json({"written": written})
    print("\n".join(written))
    return None


def _roots() -> list[Path]:
    """Where the files lie: in the package, or for an editable install in the checkout."""
    package = Path(pd_handoff.__file__).parent
    if (package / "protos").is_dir():
        return [package / "protos"]
    checkout = package.parents[2]
    roots = [checkout / "protos", checkout / "third_party"]
    if not (roots[0] / "pd_handoff").is_dir():
        raise FileNotFoundError(f"no .proto files in {package / 'protos'}: this installation is incomplete")
    return roots
