"""`fk serve`: the API of OpenAI over HTTP, in front of an engine in a process of its own.

    client ── app ── answers ── engine_client ═══ pipe ═══ engine_process ── LLM
               bodies  replies       (messages)

Everything left of the pipe is one process: HTTP, tokenizing, decoding images, text and stop strings of
answers. The engine gets token ids and gives token ids.
"""
