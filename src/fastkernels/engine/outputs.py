"""From the engine's record of a request to what its caller reads: whole, or bit by bit as it grows."""

from __future__ import annotations

from fastkernels.engine.requests import CompletionOutput, Request, RequestOutput
from fastkernels.engine.text import Text


def whole(request_id: str, prompt: str | None, request: Request, text: Text) -> RequestOutput:
    """A finished request."""
    content, transcript = "", request.transcript
    if transcript is not None:
        content = transcript.text
    elif request.sampling.detokenize:
        content = text.decode(request.text_ids)
    return _output(request_id, prompt, request, content, 0)


class Reader:
    """Gives what is new of one request since the last time; the pieces make up the whole."""

    def __init__(self, request_id: str, prompt: str | None) -> None:
        self.request_id, self.prompt = request_id, prompt
        self._tokens = self._characters = 0

    def news(self, request: Request) -> RequestOutput:
        """New tokens, their text as far as no later token can change it, and the end if it is there."""
        content, transcript = "", request.transcript
        if transcript is not None:
            is_open = request.finish_reason is None
            end = transcript.settled() if is_open else len(transcript.text)
            content = transcript.text[self._characters : end]
            self._characters = max(end, self._characters)
        output = _output(self.request_id, self.prompt, request, content, self._tokens)
        self._tokens = len(request.output)
        return output


def _output(
    request_id: str, prompt: str | None, request: Request, content: str, first_token: int
) -> RequestOutput:
    completion = CompletionOutput(
        index=0,
        text=content,
        token_ids=request.output[first_token:],
        finish_reason=request.finish_reason,
        logprobs=None if request.sampling.logprobs is None else request.logprobs[first_token:],
        stop_reason=request.stop_reason,
    )
    return RequestOutput(
        request_id,
        prompt,
        request.prompt,
        [completion],
        finished=request.finish_reason is not None,
        num_cached_tokens=request.num_cached or 0,
    )
