"""Others judge the server: tritonclient, schemathesis, perf_analyzer and wrk. ``make judge``; each that is not there is named.

The Python packages are installed into an environment of their own, because tritonclient asks for older ones than the rest. wrk and the
library libb64-0d, which perf_analyzer needs, come from Debian.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "serve"))

PACKAGES = ["tritonclient[http,grpc]==2.73.0", "schemathesis>=4"]
ANALYZER = [
    "tritonclient==2.50.0",
    "nvidia-cuda-runtime-cu12",
]  # the wheel that holds the binary, and a library it is linked to
SCRIPT = """
local body = '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":[%s]},{"name":"INPUT1","shape":[1,16],"datatype":"INT32","data":[%s]}]}'
local row = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
wrk.method, wrk.body = "POST", string.format(body, row, row)
wrk.headers["Content-Type"] = "application/json"
"""


def environment(venv: Path) -> Path:
    """Return the Python of the judges' environment; make it where there is none."""
    python = venv / "bin" / "python"
    if not (venv / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        wheels = venv / "wheels"
        subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels, *ANALYZER], check=True)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(venv / "analyzer")
        (venv / "ready").touch()
    return python


def run(name: str, command: list[object], **options) -> bool:
    """Run one judge and say how it went."""
    print(f"--- {name}", flush=True)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | options.pop("env", {})
    code = subprocess.run([str(part) for part in command], env=env, check=False, timeout=600, **options).returncode
    print(f"--- {name}: {'good' if code == 0 else f'ended with {code}'}", flush=True)
    return code == 0


def analyzer(venv: Path, url: str, grpc_url: str) -> list[bool]:
    """Let perf_analyzer measure for a moment, over both protocols."""
    found = [p for p in (venv / "analyzer").rglob("perf_analyzer") if p.is_file()]
    if not found:
        print("perf_analyzer is not in the wheel")
        return [False]
    found[0].chmod(0o755)
    libraries = {str(p.parent) for p in (venv / "analyzer").rglob("*.so*")}
    env = {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}
    common = [
        "-m",
        "simple",
        "--concurrency-range",
        "1:4:3",
        "--measurement-interval",
        "1000",
        "--stability-percentage",
        "80",
    ]
    return [
        run(f"perf_analyzer over {protocol}", [found[0], *common, "-i", protocol, "-u", where], env=env)
        for protocol, where in (("http", url), ("grpc", grpc_url))
    ]


def main() -> None:
    """Start a server, let everyone judge it, and end with 1 where one is not content."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", type=Path, default=Path(".venv-judge"))
    told = parser.parse_args()
    from live_server import save_models

    venv = told.venv.resolve()
    python = environment(venv)
    with tempfile.TemporaryDirectory() as folder:
        save_models(Path(folder) / "models")
        command = [
            sys.executable,
            "-m",
            "tensorlogic",
            "serve",
            f"{folder}/models",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--name",
            "triton",
            "--json",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            url, grpc_url = said["url"].removeprefix("http://"), f"127.0.0.1:{said['grpc_port']}"
            good = [run("tritonclient", [python, HERE / "triton_calls.py", url, grpc_url])]
            schema = [python.parent / "schemathesis", "run", f"{said['url']}/openapi.json", "--max-examples", "60", "--seed", "0",
                      "--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "/(un)?load$",
                      "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]  # fmt: skip
            good.append(run("schemathesis", schema, cwd=folder))
            good += analyzer(venv, url, grpc_url)
            if shutil.which("wrk"):
                script = Path(folder) / "post.lua"
                script.write_text(SCRIPT)
                good.append(
                    run(
                        "wrk",
                        [
                            "wrk",
                            "-t1",
                            "-c64",
                            "-d3s",
                            "--latency",
                            "-s",
                            script,
                            f"{said['url']}/v2/models/simple/infer",
                        ],
                    )
                )
            else:
                print("wrk is not there: apt-get install wrk")
        finally:
            server.terminate()
            server.wait(60)
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
