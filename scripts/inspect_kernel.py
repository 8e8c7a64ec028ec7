"""Compile the fused kernels and count their registers, shared memory, and instructions per pair of tokens.

    python scripts/inspect_kernel.py                           # every tile of the table for the shapes of the paper
    python scripts/inspect_kernel.py --width 16 --arch 90 --kernel forward --tile 128,64,8
    python scripts/inspect_kernel.py --check                   # exit 1 for a kernel that spills registers, for example

Compilation is ahead of time and needs no GPU (NVIDIA's tools come with Triton). Instructions are counted in the loop
over tiles, those of inner loops as often as they run, times threads, over the pairs of a tile: the cost of one pair,
without waiting.
"""

import argparse
import dataclasses
import itertools
import math
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fourierformer.kernels.sinc import factors, features, fused
from fourierformer.kernels.sinc.op import TIERS
from fourierformer.kernels.sinc.tiles import BACKWARD_ROWS, Tile, tile
from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser

# bytes a block may use, CUDA programming guide
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
MATRIX_INSTRUCTION = {80: "HMMA", 86: "HMMA", 89: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
KERNELS = ["forward", "both", "queries", "keys"]
WIDTHS = [16, 32, 64]
GROUP = factors.GROUP.value
INTEGERS = {"H", "N", "M", "sums_size", "part_size", "moment_size", "first_moment"}
STRIDE = "[a-z]_(batch|head|token|features)"
HALVES = {"XF", "YF", "QF", "KF"}


@dataclasses.dataclass(frozen=True)
class Case:
    arch: int
    kernel: str  # forward; queries and keys: the launches of a backward of two passes; both: that of one pass
    width: int
    nodes: int
    precise: bool
    log: bool
    tile: Tile
    keep: bool = False  # some keys are left out

    def matrix_instruction(self) -> str:
        return "HMMA" if self.tile.rows < 64 else MATRIX_INSTRUCTION[self.arch]  # the newer ones take 64 rows

    def most_spills(self) -> float:
        """Instructions that may spill registers. Wider heads and float32 exceed the registers (slower only); tiles
        chosen by timing spill a few outside of the loops over coordinates, as does one pass."""
        whole = self.width % 4 == 0  # others are loaded number by number
        if self.width > 64 or self.precise:
            return math.inf
        if self.arch == 100 and self.nodes == 16 and whole:
            return 0
        if self.kernel == "both":
            return 90
        if self.nodes == 16 and self.arch != 90:
            return 10 if whole else 40
        if self.arch == 100:
            return 16 if self.nodes > 0 and self.tile.rows >= 64 else math.inf
        return 40 if self.arch in (86, 89) or self.tile.stages > 1 else 0

    def products(self, last: bool) -> float:
        """Matrix instructions of one warp in an inner loop over all coordinates, which the compiler may have unrolled:
        one product per coordinate; in the last loop of the backward a factor and a slope, and in half mode of one pass
        sums over 16 numbers each."""
        rows, columns, warps = self.tile.rows, self.tile.columns, self.tile.warps
        each, sums = {
            # four warps take 64 rows and all columns; sums over rows are HMMA
            "HGMMA": (max(1, rows // (16 * warps)), max(1, rows // (16 * warps)) * columns / 16),
            "HMMA": (rows * columns / (16 * 8) / warps, rows * columns / (16 * 4) / warps),  # of 16 rows and 8 columns
        }[self.matrix_instruction()]
        per_coordinate = each * self.nodes / 16 * (3 if self.precise else 1)
        if last and self.kernel != "forward":
            per_coordinate = 2 * per_coordinate + (sums if self.sums_by_products() else 0)
        return self.stored() * per_coordinate

    def sums_by_products(self) -> bool:
        return self.kernel == "both" and self.nodes > 0 and not self.precise

    def stored(self) -> int:
        return triton.cdiv(self.width, 4) * 4

    def settings(self) -> dict[str, object]:
        width = self.stored()
        loaded = max(16, triton.next_power_of_2(self.width))
        settings = {"WIDTH": self.width, "STORED": width, "V_WIDTH": self.width, "V_LOADED": loaded}
        settings |= {"POWER": 4, "CAUSAL": True, "LOG": self.log}
        settings |= {"PRECISE": self.precise, "NODES": self.nodes}
        settings |= self.tile.sizes() | kept(self.keep)
        if self.kernel != "forward":
            settings |= {"LOADED": triton.next_power_of_2(width), "KEYS": self.kernel != "queries"}
            settings |= {} if self.kernel == "both" else {"Parts": None}
        return settings


@dataclasses.dataclass(frozen=True)
class Compiled:
    registers: int
    spills: int  # instructions that touch local memory
    shared: int  # bytes
    matrix: int  # instructions of the matrix unit
    per_pair: float  # instructions per pair; NaN where the loops were not found
    masking: float  # additional instructions per pair in a tile with a causal mask

    def faults(self, case: Case) -> list[str]:
        faults = []
        if self.spills > case.most_spills():
            faults.append(f"{self.spills} instructions spill registers")
        if self.shared > SHARED_MEMORY[case.arch]:
            faults.append(f"{self.shared} bytes of shared memory, there are {SHARED_MEMORY[case.arch]}")
        if not self.matrix:
            faults.append(f"no {case.matrix_instruction()}")
        return faults


def compile_case(case: Case) -> Compiled:
    kernel = fused.forward if case.kernel == "forward" else fused.backward
    compiled = compile_ahead(kernel, case.settings(), case.arch, **case.tile.options())
    sass = compiled.asm["sass"]
    registers = 1 + max((int(r) for r in re.findall(r"\bR(\d+)\b", sass)), default=0)
    matrix = len(re.findall(rf"\b{case.matrix_instruction()}", sass))
    return Compiled(registers, spills(sass), compiled.metadata.shared, matrix, *instructions_per_pair(sass, case))


def kept(keep: bool) -> dict[str, None]:
    """The setting of Keep: with None the compiler leaves out all code for it."""
    return {} if keep else {"Keep": None}


def compile_preparation(arch: int, width: int, keep: bool) -> int:
    """Spilling instructions of the kernels that choose the number of features, write them and add up parts of dq."""
    kernels = [(features.choose_nodes, {"WIDTH": width, "LOADED": triton.next_power_of_2(width)})]
    for precise in (False, True):
        settings = {"WIDTH": width, "STORED": triton.cdiv(width, 4) * 4, "PRECISE": precise}
        kernels.append((features.write_features, settings | kept(keep)))
    settings = {"WIDTH": width, "STORED": settings["STORED"], "LOADED": triton.next_power_of_2(settings["STORED"])}
    kernels.append((fused.add_parts, settings | {"POWER": 4, "CAUSAL": True, "ROWS": BACKWARD_ROWS}))
    return sum(spills(compile_ahead(*kernel, arch).asm["sass"]) for kernel in kernels)


def spills(sass: str) -> int:
    return len(re.findall(r"\b(?:LDL|STL)\b", sass))


def compile_ahead(
    kernel: triton.JITFunction, settings: dict, arch: int, **options: int
) -> triton.compiler.CompiledKernel:
    # as for contiguous tensors: the last stride is 1, all others and all addresses are multiples of 16
    settings |= {name: 1 for name in kernel.arg_names if re.fullmatch("[a-z]_width", name)}
    signature = {name: "constexpr" if name in settings else argument_type(name) for name in kernel.arg_names}
    even = [i for i, n in enumerate(kernel.arg_names) if signature[n][0] == "*" or re.fullmatch(STRIDE, n)]
    aligned = {(i,): [["tt.divisibility", 16]] for i in even}
    source = ASTSource(kernel, signature=signature, constexprs=settings, attrs=aligned)
    options = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True} | options
    if kernel not in (fused.forward, fused.backward):
        options |= features.EXACT
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def argument_type(name: str) -> str:
    if name in INTEGERS or re.fullmatch(STRIDE, name):
        return "i32"
    if name in ("eps", "log2_eps"):
        return "fp32"
    return {"Tier": "*i32", "Keep": "*u8"}.get(name, "*fp16" if name in HALVES else "*fp32")


def instructions_per_pair(sass: str, case: Case) -> tuple[float, float]:
    """Instructions per pair in a tile without a mask, and the additional ones with a mask. NaN for compute capability
    10.0: one thread starts the matrix unit for all, so its instructions mark no loops."""
    if case.arch == 100:
        return math.nan, 0.0
    names, labels, jumps = [], {}, []
    for line in sass.splitlines():
        if label := re.match(r"(\w+):$", line):
            labels[label[1]] = len(names)
        elif instruction := re.match(r"[^\t]*\t(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)([^;]*);", line):
            if instruction[1].startswith("BRA"):
                jumps.append((len(names), instruction[2].split()[-1]))
            names.append(instruction[1].split(".")[0])
    loops = [range(labels[target], at + 1) for at, target in jumps if labels.get(target, at) < at]
    if not loops:
        return math.nan, 0.0
    outer = max(loops, key=len)
    inner = sorted((loop for loop in loops if loop != outer and loop[0] in outer), key=lambda loop: loop[0])
    times = dict.fromkeys(outer, 1.0)
    for number, loop in enumerate(inner):
        inside = sum(names[at] == case.matrix_instruction() for at in loop)
        of_groups = any(other[0] in loop and other != loop for other in inner)
        for at in loop:
            if of_groups:
                times[at] = case.stored() / GROUP
            else:
                times[at] = case.products(last=number == len(inner) - 1) / inside if inside else case.width
    skips = [range(at + 1, labels[target]) for at, target in jumps if at in outer and labels.get(target) in outer]
    skipped = set().union(*skips)
    share = case.tile.warps * 32 / (case.tile.rows * case.tile.columns)
    masking = sum(often for at, often in times.items() if at in skipped)
    return (sum(times.values()) - masking) * share, masking * share


def cases(args: argparse.Namespace) -> list[Case]:
    kinds = itertools.product(
        args.kernel or KERNELS,
        args.width or WIDTHS,
        args.nodes or TIERS,
        {"half": [False], "float32": [True], None: [False, True]}[args.mode],
        [True] if args.log else [False, True],
    )
    chosen = []
    for kernel, width, nodes, precise, log in kinds:
        kind = (kernel, width, nodes, precise, log)
        for arch in args.arch or SHARED_MEMORY:
            table = [tile(*kind, arch // 10, few) for few in ((False, True) if kernel == "forward" else (False,))]
            chosen += [Case(arch, *kind, each, args.keep) for each in args.tile or table]
    return chosen


def tile_of(text: str) -> Tile:
    """A tile from its argument. Triton needs powers of two, and matrix instructions at least 16 rows and columns."""
    parts = text.split(",")
    numbers = [int(part) for part in parts] if all(part.isdecimal() and len(part) < 5 for part in parts) else []
    sizes = numbers[:3]
    powers = len(sizes) == 3 and all(n.bit_count() == 1 for n in sizes) and min(sizes[:2]) >= 16 and sizes[2] <= 32
    if not powers or len(numbers) > 5 or not all(numbers) or numbers[4:] not in ([], [1], [2], [4], [8], [16]):
        wanted = "rows, columns (at least 16) and warps (at most 32), powers of two, as in 128,64,8; stages; a step"
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected {wanted}")
    return Tile(*numbers)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--kernel", action="append", choices=KERNELS)
    parser.add_argument("--width", action="append", type=int, help="coordinates per head")
    parser.add_argument("--nodes", action="append", type=int, choices=TIERS, help="0: the printed formula")
    parser.add_argument("--arch", action="append", type=int, choices=SHARED_MEMORY, help="compute capability times ten")
    parser.add_argument("--tile", action="append", type=tile_of, help="rows,columns,warps[,stages[,step]]")
    parser.add_argument("--mode", choices=["half", "float32"], help="only this precision")
    parser.add_argument("--log", action="store_true", help="only the log domain (eps = 0)")
    parser.add_argument("--keep", action="store_true", help="where some keys are left out")
    parser.add_argument("--check", action="store_true", help="exit 1 for a kernel with a fault")
    args = parser.parse_args()
    wrong = 0
    columns = "class log arch  rows,...,warps,stages,step  registers  spills  shared KiB  per pair  with a mask"
    echo(f"kernel   width nodes {columns}")
    for case in cases(args):
        compiled = compile_case(case)
        faults = compiled.faults(case)
        wrong += bool(faults)
        numbers = ",".join(map(str, dataclasses.astuple(case.tile)))
        mode = "f32" if case.precise else "half"
        echo(
            f"{case.kernel:8} {case.width:5} {case.nodes:5} {mode:5} {case.log:3} {case.arch:4}  {numbers:>23}"
            f"  {compiled.registers:9}  {compiled.spills:6}  {compiled.shared / 1024:10.0f}  {compiled.per_pair:8.0f}"
            f"  {compiled.per_pair + compiled.masking:11.0f}  {'; '.join(faults)}",
            flush=True,
        )
    for arch, width in itertools.product(args.arch or SHARED_MEMORY, [] if args.kernel else args.width or WIDTHS):
        spilling = compile_preparation(arch, width, args.keep)
        wrong += bool(spilling)
        echo(f"features {width:5} {arch:22}  {spilling} instructions spill registers")
    if args.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
