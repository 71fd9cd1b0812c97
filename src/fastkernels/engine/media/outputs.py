"""From the engine's records of a prompt's answers to what its caller reads: whole, or as they grow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastkernels.engine.core.request import CompletionOutput, Logprobs, Request, RequestOutput
from fastkernels.engine.media.text import Text


class Reader:
    """Gives what a caller reads of one prompt's answers; the pieces make up the whole."""

    def __init__(self, request_id: str, prompt: str | None, text: Text, num_answers: int = 1) -> None:
        self.request_id, self.prompt, self._text = request_id, prompt, text
        self._read: dict[int, tuple[int, int]] = {}  # tokens and characters, by the index of the answer
        self._num_open = num_answers

    def whole(self, answers: Sequence[Request]) -> RequestOutput:
        """Finished answers."""
        outputs = []
        for request in answers:
            transcript = request.transcript or self._text.transcript(request.prompt, request.sampling, False)
            if transcript is not None and request.transcript is None:
                transcript.close(request.text_ids)
            outputs.append(self._completion(request, "" if transcript is None else transcript.text, 0))
        return self._output(answers[0], outputs, True, True)

    def news(self, request: Request) -> RequestOutput:
        """Of one answer: new tokens, their text as far as no later token can change it, and the end if it is
        there."""
        num_tokens, begin = self._read.get(request.index, (0, 0))
        content, end, transcript = "", 0, request.transcript
        has_ended = request.finish_reason is not None
        if transcript is not None:
            end = max(begin, len(transcript.text) if has_ended else transcript.settled())
            content = transcript.text[begin:end]
        self._read[request.index] = len(request.output), end
        self._num_open -= has_ended
        output = self._completion(request, content, num_tokens)
        return self._output(request, [output], not self._num_open, not num_tokens)

    def _completion(self, request: Request, content: str, first_token: int) -> CompletionOutput:
        logprobs, total = None, None
        if request.sampling.logprobs is not None:
            logprobs = request.logprobs[first_token:]
            total = sum(at[token].logprob for token, at in zip(request.output, request.logprobs))
        self._name(request, logprobs or ())
        return CompletionOutput(
            index=request.index,
            text=content,
            token_ids=request.output[first_token:],
            finish_reason=request.finish_reason,
            logprobs=logprobs,
            stop_reason=request.stop_reason,
            cumulative_logprob=total,
        )

    def _output(
        self, request: Request, outputs: list[CompletionOutput], is_finished: bool, is_first: bool
    ) -> RequestOutput:
        prompt_logprobs = request.prompt_logprobs if is_first else None
        self._name(request, filter(None, prompt_logprobs or ()))
        return RequestOutput(
            self.request_id,
            self.prompt,
            request.prompt,
            outputs,
            finished=is_finished,
            num_cached_tokens=request.num_cached or 0,
            prompt_logprobs=prompt_logprobs,
        )

    def _name(self, request: Request, positions: Iterable[Logprobs]) -> None:
        """Give tokens their text, where text is made."""
        if request.sampling.detokenize and self._text.tokenizer is not None:
            for logprobs in positions:
                for token, logprob in logprobs.items():
                    logprob.decoded_token = self._text.token(token)
