#!/usr/bin/env python3
"""Packs a program that is built already for pip and npm. mount-scripts/package calls this.

    bundle.py wheel PROGRAM PAGES FOLDER   makes msgfs-VERSION-py3-none-PLATFORM.whl
    bundle.py npm PROGRAM PAGES FOLDER     makes msgfs-VERSION.tgz and msgfs-linux-CPU-VERSION.tgz

PAGES is the folder with the README, docs/ and examples/. The same input gives the same bytes; SOURCE_DATE_EPOCH is
the time of all files. Name, version, licence and description are those of Cargo.toml.
"""

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENCES = ["LICENSE", "LICENSE-APACHE"]
MANUAL = "mount-scripts/generated/msgfs.1"
# The time that npm gives to all files.
NPM_EPOCH = 499162500
# What readelf calls a machine: what Python and what npm call it.
MACHINES = {"Advanced Micro Devices X86-64": ("x86_64", "x64"), "AArch64": ("aarch64", "arm64")}
# The libraries that every Linux with glibc has, by the rules of manylinux.
COMMON_LIBRARIES = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux-(x86-64|aarch64))\.so\.\d+")
# The newest symbols of libgcc_s: the oldest manylinux that has them.
GCC_SYMBOLS = {(4, 8): (2, 17), (7, 0): (2, 27), (12, 0): (2, 35), (14, 0): (2, 39)}


class BundleError(Exception):
    """The program cannot be packed."""


class Elf:
    """The platform that a program needs, by its headers."""

    def __init__(self, program: Path) -> None:
        told = subprocess.run(
            ["readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--version-info", program],
            env={**os.environ, "LC_ALL": "C"}, check=True, stdout=subprocess.PIPE, text=True).stdout
        machine = re.search(r"^ *Machine: +(.*)$", told, re.MULTILINE)
        if not machine or machine[1] not in MACHINES:
            raise BundleError(f"{program} is for {machine[1] if machine else 'nothing that is known'}")
        self.python_machine, self.npm_cpu = MACHINES[machine[1]]
        self.interpreter = re.search(r"\[Requesting program interpreter: (.*)\]", told)
        self.libraries = re.findall(r"\(NEEDED\) +Shared library: \[(.*)\]", told)
        self.symbols = set(re.findall(r"\bName: ([A-Z_]+[A-Z0-9_.]*) +Flags:", told))

    def is_static(self) -> bool:
        """Returns whether it needs no library of the system."""
        return not self.interpreter and not self.libraries

    def glibc(self) -> tuple[int, int]:
        """Returns the oldest glibc whose systems it runs on."""
        if strange := [name for name in self.libraries if not COMMON_LIBRARIES.fullmatch(name)]:
            raise BundleError(f"it needs libraries that not every Linux has: {', '.join(strange)}")
        newest = (2, 17)
        for symbol in self.symbols:
            name, _, version = symbol.rpartition("_")
            if symbol == "GLIBC_ABI_DT_RELR":
                newest = max(newest, (2, 36))
            elif not re.fullmatch(r"[0-9.]+", version) or name not in ("GLIBC", "GCC"):
                raise BundleError(f"it needs {symbol}, and nobody says which systems have that")
            else:
                parts = tuple(map(int, version.split(".")))[:2]
                needed = [parts] if name == "GLIBC" else [glibc for gcc, glibc in GCC_SYMBOLS.items() if parts <= gcc]
                if not needed:
                    raise BundleError(f"it needs {symbol}, which is newer than manylinux allows")
                newest = max(newest, needed[0])
        return newest

    def python_platforms(self) -> list[str]:
        """Returns the platform tags of a wheel with this program."""
        if self.is_static():
            return [f"{system}_{self.python_machine}" for system in ("manylinux_2_17", "manylinux2014", "musllinux_1_1")]
        major, minor = self.glibc()
        tags = [f"manylinux_{major}_{minor}_{self.python_machine}"]
        return tags + ([f"manylinux2014_{self.python_machine}"] if (major, minor) == (2, 17) else [])


def package() -> dict:
    """Returns what Cargo.toml says about the package."""
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]


def python_version(version: str) -> str:
    """Returns a version of Cargo as Python writes it."""
    parts = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.?(\d+))?", version)
    if not parts:
        raise BundleError(f"Python has no version like {version}")
    return parts[1] + (f"{parts[2][:1] if parts[2] != 'rc' else 'rc'}{parts[3]}" if parts[2] else "")


def epoch() -> int:
    """Returns the time of all files."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", NPM_EPOCH))


def without_links(text: str) -> str:
    """Returns a page without the links that lead into the package."""
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+://)[^)]+\)", r"\1", text)


def page_files(pages: Path) -> dict[str, bytes]:
    """Returns the files of a folder by their paths in it."""
    files = sorted(path for path in pages.rglob("*") if path.is_file())
    return {path.relative_to(pages).as_posix(): path.read_bytes() for path in files}


def write_wheel(program: Path, pages: Path, folder: Path) -> list[Path]:
    """Makes the wheel."""
    about = package()
    version = python_version(about["version"])
    platforms = Elf(program).python_platforms()
    name = f"{about['name']}-{version}"
    info, data = f"{name}.dist-info", f"{name}.data"
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {about['name']}",
        f"Version: {version}",
        f"Summary: {about['description']}",
        f"Keywords: {','.join(about['keywords'])}",
        f"License-Expression: {about['license']}",
        *(f"License-File: {licence}" for licence in LICENCES),
        "Classifier: Environment :: Console",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Rust",
        "Requires-Python: >=3.7",
        "Description-Content-Type: text/markdown; charset=UTF-8; variant=GFM",
        "",
        without_links((pages / about["readme"]).read_text()),
    ]
    wheel = [
        "Wheel-Version: 1.0",
        f"Generator: msgfs ({about['version']})",
        "Root-Is-Purelib: false",
        *(f"Tag: py3-none-{platform}" for platform in platforms),
        "",
    ]
    files = {f"{data}/scripts/{about['name']}": program.read_bytes()}
    files |= {f"{data}/data/share/doc/{about['name']}/{path}": text for path, text in page_files(pages).items()}
    files[f"{data}/data/share/man/man1/{Path(MANUAL).name}"] = (ROOT / MANUAL).read_bytes()
    files |= {f"{info}/licenses/{licence}": (ROOT / licence).read_bytes() for licence in LICENCES}
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    files[f"{info}/WHEEL"] = "\n".join(wheel).encode()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = record.getvalue().encode()

    made = folder / f"{name}-py3-none-{'.'.join(platforms)}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, time.gmtime(max(epoch(), 315532800))[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            archive.writestr(entry, content)
    return [made]


def write_tarball(made: Path, files: dict[str, bytes], programs: set[str]) -> Path:
    """Makes a package as `npm pack` does."""
    with made.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=epoch()) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, content in files.items():
                entry = tarfile.TarInfo(f"package/{path}")
                entry.size = len(content)
                entry.mtime = epoch()
                entry.mode = 0o755 if path in programs else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return made


def write_npm(program: Path, pages: Path, folder: Path) -> list[Path]:
    """Makes the package that people name, and the one with the program."""
    about = package()
    name, version = about["name"], about["version"]
    elf = Elf(program)
    if not elf.is_static():
        elf.glibc()
    platform = f"linux-{elf.npm_cpu}"
    common = {"version": version, "license": about["license"]}
    licences = {licence: (ROOT / licence).read_bytes() for licence in LICENCES}

    def described(description: dict) -> bytes:
        return (json.dumps(description, indent=2) + "\n").encode()

    own = {
        "name": f"@{name}/{platform}",
        "description": f"The program of {name} for {platform}",
        **common,
        "os": ["linux"],
        "cpu": [elf.npm_cpu],
        **({} if elf.is_static() else {"libc": ["glibc"]}),
        "preferUnplugged": True,
    }
    readme = f"The program of {name} for {platform}. Install the package {name}, which takes this one along.\n"
    program_files = {
        "package.json": described(own),
        f"bin/{name}": program.read_bytes(),
        "README.md": readme.encode(),
        **licences,
    }
    main = {
        "name": name,
        "description": about["description"],
        "keywords": about["keywords"],
        **common,
        "bin": {name: f"bin/{name}"},
        "man": [f"./{Path(MANUAL).name}"],
        "os": ["linux"],
        "optionalDependencies": {f"@{name}/linux-{cpu}": version for _, cpu in MACHINES.values()},
        "preferUnplugged": True,
    }
    main_files = {
        "package.json": described(main),
        f"bin/{name}": (ROOT / "mount-scripts/npm" / name).read_bytes(),
        Path(MANUAL).name: (ROOT / MANUAL).read_bytes(),
        **page_files(pages),
        **licences,
    }
    return [
        write_tarball(folder / f"{name}-{version}.tgz", main_files, {f"bin/{name}"}),
        write_tarball(folder / f"{name}-{platform}-{version}.tgz", program_files, {f"bin/{name}"}),
    ]


def main() -> int:
    """Does what the command line says and prints the files that were made."""
    makers = {"wheel": write_wheel, "npm": write_npm}
    if len(sys.argv) != 5 or sys.argv[1] not in makers:
        print(__doc__, file=sys.stderr)
        return 2
    program, pages, folder = map(Path, sys.argv[2:])
    try:
        made = makers[sys.argv[1]](program, pages, folder)
    except BundleError as error:
        print(f"bundle.py: {error}", file=sys.stderr)
        return 1
    print(*made, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
