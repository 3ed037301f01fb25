"""The process in which rewards and operators compute. Started by :mod:`trinity_core.rollout.pool`, killed by it.

Frames are a length (4 bytes, little endian) and msgpack. Jobs come in on standard input; answers leave on what was
standard output, which is then pointed at standard error so that a reward's prints disturb nobody. A thread reads the
jobs, and ends the process and its children when the parent is gone, whatever the reward is doing.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import sys
import threading
from typing import Any, BinaryIO

import msgpack

LENGTH = struct.Struct("<I")


def main() -> None:
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs, inbox), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    components: dict[str, Any] = {}
    while True:
        job = inbox.get()
        for answer in _answers(job, components):
            body = msgpack.packb(answer)
            answers.write(LENGTH.pack(len(body)) + body)
            answers.flush()


def _listen(jobs: BinaryIO, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    while True:
        head = jobs.read(LENGTH.size)
        body = jobs.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
        if not body:
            os.killpg(0, signal.SIGKILL)
        inbox.put(msgpack.unpackb(body))


def _answers(job: dict[str, Any], components: dict[str, Any]) -> Any:
    """``ready``, then an answer for each item, each as soon as it is there."""
    from trinity_core.codec import pack, unpack
    from trinity_core.rollout.outcome import as_score, as_scores, broke, place_of, to_wire, traceback_of

    name, where = job["component"], job["where"]
    try:
        if name not in components:
            components[name] = pickle.loads(job["spec"])  # from our parent, about its own config
        component, group = components[name], unpack(job["group"])
    except BaseException as error:  # noqa: BLE001 - whatever an import does, the parent hears of it
        yield {"failed": f"{type(error).__name__}: {error}{place_of(error)}", "traceback": traceback_of(error)}
        return
    yield {"ready": True}
    if job["method"] == "attempt":
        for item in job["items"]:
            trace = ""
            try:
                score = as_score(component(group.attempts[item]), where)
            except (Exception, SystemExit) as error:  # noqa: BLE001
                score, trace = broke(error, where), traceback_of(error)
            yield {"item": item, "score": to_wire(score), "traceback": trace}
    elif job["method"] == "group":
        trace = ""
        try:
            scores = as_scores(component.group(group.attempts), len(group.attempts), where)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            scores, trace = [broke(error, where)] * len(group.attempts), traceback_of(error)
        yield {"item": 0, "scores": [to_wire(score) for score in scores], "traceback": trace}
    else:
        try:
            yield {"item": 0, "groups": [pack(one) for one in component(group)]}
        except (Exception, SystemExit) as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}{place_of(error)}"
            yield {"item": 0, "error": said, "traceback": traceback_of(error)}


if __name__ == "__main__":
    main()
