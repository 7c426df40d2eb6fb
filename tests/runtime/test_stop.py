from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from conftest import wait_until

from unilab.runtime.checkpoint import load_checkpoint
from unilab.runtime.stop import Stopped, StopRequest

TASK = f"{Path(__file__).parents[1] / 'tiny.py'}:Slider"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_noticed_at_the_next_check(number: signal.Signals, code: int) -> None:
    """A signal does nothing until it is asked for; then it stops with the shell's exit code, and handlers are back."""
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=f"stopped by {number.name}") as caught:
            stop.check()
        assert caught.value.exit_code == code
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before  # a second one acts at once
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_catch_nothing() -> None:
    """In a thread, where Python allows no handlers, stopping is simply never asked for."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with StopRequest() as stop:
                stop.check()
        except BaseException as error:
            failures.append(error)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_training_leaves_a_checkpoint(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C or SIGTERM ends `unilab train` with the shell's exit code, a checkpoint, a summary and no worker."""
    run = tmp_path / "run"
    sizes = {
        "steps": 10**9,
        "num-envs": 8,
        "shard-size": 4,
        "algo.rollout-steps": 8,
        "algo.epochs": 1,
        "algo.minibatches": 1,
    }
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    command = [sys.executable, "-m", "unilab", "train", TASK, *flags, "--workers=2", f"--out={run}", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        metrics = run / "metrics.jsonl"
        wait_until(
            lambda: process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2),
            "two rows",
        )
        assert process.poll() is None, process.communicate()[0]
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) == 2
        process.send_signal(number)
        output = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == code, output
    assert "Traceback" not in output
    assert not psutil.wait_procs(workers, timeout=5)[1]
    rows = metrics.read_text().splitlines()
    assert load_checkpoint(run).manifest["iteration"] == json.loads(rows[-1])["iteration"] == len(rows)
    assert json.loads((run / "summary.json").read_text())["outcome"] == f"stopped by {number.name}"
