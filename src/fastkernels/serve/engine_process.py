"""The process of the engine: requests in, token events out, a step whenever a request is there."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import traceback
from multiprocessing.connection import Connection

import torch

from fastkernels.engine.core.request import RequestOutput
from fastkernels.engine.llm import LLM
from fastkernels.errors import FastKernelsError, RequestError
from fastkernels.runner.models import e2e
from fastkernels.runner.worker.resources import default_threads
from fastkernels.serve.messages import Abort, Add, AskStats, Failed, Grown, Ready, Refused, Stats


def main(connection: Connection, options: e2e.EngineOptions) -> None:
    """Until the other end says None or is gone. Signals are for the other end, which drains first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with e2e.blaming(options.candidates):
                _serve(connection, _load(options))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except FastKernelsError as error:
            connection.send(Failed(str(error), error.exit_code))
        except BaseException as error:
            traceback.print_exc()
            first = (str(error).strip() or "no message").splitlines()[0]
            connection.send(Failed(f"the engine failed: {type(error).__name__}: {first}", 1))


def _load(options: e2e.EngineOptions) -> LLM:
    torch.set_num_threads(default_threads())  # the other end answers meanwhile: it needs a core
    source = e2e.source_of(options, "fk serve")
    llm = e2e.make(dataclasses.replace(options, tokenizer=None), source)  # text is made at the other end
    if not e2e.media_of(source):
        e2e.warm_up(llm, options.seed)
    return llm


def _serve(connection: Connection, llm: LLM) -> None:
    folder = llm.source.folder
    connection.send(
        Ready(
            llm.source.name,
            None if folder is None else str(folder),
            llm.vocabulary,
            llm.limits.max_len,
            llm.get_default_sampling_params(),
            llm.source.generation[1].get("max_new_tokens"),
        )
    )
    while True:
        while connection.poll() or not llm.has_unfinished_requests():
            if (message := connection.recv()) is None:
                return
            _heed(connection, llm, message)
        if events := [_event(output) for output in llm.step()]:
            connection.send(events)


def _heed(connection: Connection, llm: LLM, message: Add | Abort | AskStats) -> None:
    match message:
        case Add(id, prompt, sampling, streamed):
            try:
                llm.add_request(prompt, sampling, request_id=id, stream=streamed)
            except RequestError as error:
                connection.send([Refused(id, str(error))])
        case Abort(id):
            llm.abort(id)
        case AskStats():
            connection.send(Stats(llm.stats()))


def _event(output: RequestOutput) -> Grown:
    (answer,) = output.outputs
    return Grown(
        output.request_id,
        len(output.prompt_token_ids),
        output.num_cached_tokens,
        answer.token_ids,
        answer.logprobs,
        answer.finish_reason,
    )
