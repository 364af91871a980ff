"""`baton chat`: talk to a model from the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Final

import click
import httpx
import msgspec
from rich.console import Console
from rich.text import Text

from cli.api import ApiError, api_option, check, connect, sse_events

__all__ = ["chat"]

_SILENCE_S: Final = 600.0
"""How long the node may say nothing: it queues a request before the first keep-alive comment."""


class _Tokens(msgspec.Struct):
    prompt: int = 0
    cached_local: int = 0
    cached_remote: int = 0


class _Report(msgspec.Struct):
    prefill: str = ""
    reason: str = ""
    prefill_node: str | None = None
    tokens: _Tokens = msgspec.field(default_factory=_Tokens)
    bytes: int = 0
    ttft_ms: float = 0.0


class _Delta(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Error(msgspec.Struct):
    message: str


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    x_baton: _Report | None = None
    error: _Error | None = None


class _Turn(msgspec.Struct):
    role: str
    content: str


class _Options(msgspec.Struct, omit_defaults=True):
    """What every request of a conversation says beside its messages."""

    temperature: float | None = None
    max_tokens: int | None = None


@click.command()
@click.argument("model")
@api_option
@click.option("--system", metavar="TEXT", help="Begin with this system message.")
@click.option("--once", metavar="PROMPT", help="Ask this, print the answer, and end.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    metavar="T",
    help="0 for the most likely answer, 1 by default, 2 for the wildest.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), metavar="N", help="End an answer after so many."
)
def chat(
    model: str,
    api: str,
    system: str | None,
    once: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Talk to MODEL.

    Ctrl-C cancels an answer, Ctrl-D ends the conversation. A prompt that is piped in is answered
    once.
    """
    with connect(api) as client:
        options = _Options(temperature=temperature, max_tokens=max_tokens)
        conversation = _Conversation(client, model, system, options)
        if once is not None:
            conversation.ask(once)
        elif not sys.stdin.isatty():
            conversation.ask(sys.stdin.read())
        else:
            _converse(conversation)


def _converse(conversation: _Conversation) -> None:
    # Gives `input` line editing and a history, where Python was built with it.
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            prompt = input("> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            continue
        if not prompt:
            continue
        try:
            conversation.ask(prompt)
        except KeyboardInterrupt:
            click.secho("(cancelled)", dim=True, err=True)
        except ApiError as error:
            error.show()


class _Conversation:
    """What has been said, and the connection that it is said over."""

    def __init__(
        self, client: httpx.Client, model: str, system: str | None, options: _Options
    ) -> None:
        self._client = client
        self._options = options
        self._model = model
        self._turns = [_Turn("system", system)] if system else []
        self._notes = Console(stderr=True, highlight=False)

    def ask(self, prompt: str) -> None:
        """Ask, and print the answer as it comes. What came of one that was cut off is kept.

        Raises:
            ApiError: the node refused, or failed on the way.
            KeyboardInterrupt: the answer was cancelled, here and so in the cluster.
        """
        turns = [*self._turns, _Turn("user", prompt)]
        answer: list[str] = []
        report: _Report | None = None
        try:
            with self._notes.status("reading the prompt") as waiting, self._post(turns) as response:

                def show_progress(comment: str) -> None:
                    if comment.startswith("prompt "):
                        waiting.update(f"reading the {comment} tokens")

                for chunk in _chunks(response, show_progress):
                    report = chunk.x_baton or report
                    for text in (each.delta.content for each in chunk.choices):
                        if text:
                            waiting.stop()
                            answer.append(text)
                            click.echo(text, nl=False)
        finally:
            if answer:
                click.echo()
                self._turns = [*turns, _Turn("assistant", "".join(answer))]
        if report is not None:
            self._notes.print(Text(_describe(report), style="dim"), soft_wrap=True)

    def _post(self, turns: list[_Turn]) -> AbstractContextManager[httpx.Response]:
        options: dict[str, object] = msgspec.to_builtins(self._options)
        body = {"model": self._model, "messages": turns, "stream": True, **options}
        return self._client.stream(
            "POST",
            "/v1/chat/completions",
            content=msgspec.json.encode(body),
            timeout=httpx.Timeout(_SILENCE_S),
        )


def _chunks(response: httpx.Response, on_comment: Callable[[str], None]) -> Iterator[_Chunk]:
    """Yield the chunks of a stream, whose comments go to `on_comment`.

    Raises:
        ApiError: the response is no stream, or did not come to its end.
    """
    if not response.is_success:
        response.read()
        check(response)
    try:
        for event in sse_events(response.iter_bytes(), on_comment):
            if event == b"[DONE]":
                return
            yield _decode(event)
    except httpx.TransportError as error:
        raise ApiError(f"the answer broke off: {error}") from error
    raise ApiError("the answer broke off: the node ended it early")


def _decode(event: bytes) -> _Chunk:
    try:
        chunk = msgspec.json.decode(event, type=_Chunk)
    except msgspec.DecodeError as error:
        raise ApiError(f"the node's answer is not understood: {error}") from error
    if chunk.error is not None:
        raise ApiError(chunk.error.message)
    return chunk


def _describe(report: _Report) -> str:
    """Say in a line where the prompt was read."""
    cached = report.tokens.cached_local + report.tokens.cached_remote
    where = f"on {report.prefill_node[-8:]}" if report.prefill_node else "where it was decoded"
    parts = [f"{report.tokens.prompt} prompt tokens read {where} ({report.reason})"]
    if cached:
        parts.append(f"{cached} from a cache")
    if report.bytes:
        parts.append(f"{report.bytes / 1e6:.1f} MB of cache received")
    parts.append(f"first token after {report.ttft_ms / 1e3:.2f} s")
    return ", ".join(parts)
