"""``tensorlogic launch``: one script as several ranks on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

FAREWELL = 3.0  # seconds that the other ranks have to end by themselves, after one has failed


@click.command("launch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(1, 1024), required=True, help="How many processes to start.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch_command(ranks: int, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT in several processes, the ranks of execute_distributed with communication="torch".

    \b
    Examples:
      tensorlogic launch -n 4 train.py --epochs 3
    """  # noqa: D301 - \b keeps click from joining the lines
    with tempfile.TemporaryDirectory(prefix="tensorlogic-ranks-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        own = {"WORLD_SIZE": str(ranks), "TENSORLOGIC_MEETING": meeting, "TENSORLOGIC_TOKEN": secrets.token_hex(16)}
        processes = [
            subprocess.Popen([sys.executable, script, *arguments], env={**os.environ, **own, "RANK": str(rank)})
            for rank in range(ranks)
        ]
        sys.exit(_watched(processes))


def _watched(processes: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all processes; when one fails, end the others and return its exit code."""
    try:
        while True:
            codes = [process.poll() for process in processes]
            failures = [(rank, code) for rank, code in enumerate(codes) if code]
            if failures:
                rank, code = failures[0]
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                click.echo(f"rank {rank} {how}; the others are stopped", err=True)
                end = time.monotonic() + FAREWELL  # the others say what they missed
                while time.monotonic() < end and any(process.poll() is None for process in processes):
                    time.sleep(0.05)
                return code if code > 0 else 128 - code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
