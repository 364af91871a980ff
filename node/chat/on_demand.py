"""Having a model loaded because a request asks for it, and waiting until it can answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from loguru import logger

from node.base_models import base_model
from node.chat.channel import Emit
from node.chat.failures import model_not_found, refusal, unavailable
from node.cluster import Cluster
from node.placement.decide import place, runnable
from node.routing import DecodeChoice, Refusal, choose_decode
from protocols.chat import ChatFailed, ChatLoading
from protocols.placement import Place, Refused, Reply

__all__ = ["OnDemand"]

LOAD_TIMEOUT_S: Final = 900.0
"""How long a request waits for its model: 100 GB from a slow disk."""
SHOWN_WITHIN_S: Final = 10.0
"""How long an instance that was ordered may take to appear in the view."""
MAX_UNSEEN: Final = 3
"""How often it may fail to, before the request does."""
TELL_EVERY_S: Final = 5.0
"""How often a client that waits is told so, at least."""

_UNLOADED: Final = ("unknown_model", "no_decode", "failed")


class OnDemand:
    """Makes models available to requests.

    Args:
        cluster: its view is what is waited on.
        ask: has the master place a model.
    """

    def __init__(self, cluster: Cluster, ask: Callable[[Place], Awaitable[Reply]]) -> None:
        self._cluster = cluster
        self._ask = ask

    async def ready(self, model: str, emit: Emit) -> ChatFailed | None:
        """Wait until an instance can answer for a model, having it loaded if need be.

        What has been ordered is loaded whether or not the caller is cancelled.

        Args:
            model: as the request names it.
            emit: told how far loading is.

        Returns:
            None, or why there is nothing to wait for.
        """
        unseen = 0
        with trio.move_on_after(LOAD_TIMEOUT_S):
            while unseen < MAX_UNSEEN:
                choice = self._choose(model)
                if isinstance(choice, DecodeChoice):
                    return None
                if choice.code == "loading":
                    await self._watch(model, emit)
                    continue
                if choice.code not in _UNLOADED:
                    return unavailable(f"{choice.reason}. Try again later, or see `baton status`.")
                failure = await self._have_loaded(model)
                if failure is not None:
                    return failure
                unseen += self._is_unloaded(model)
            return unavailable(
                f"{model} was placed on a node that cannot be seen from here. See `baton status`."
            )
        return unavailable(
            f"{model} was not loaded within {LOAD_TIMEOUT_S:g} s. See `baton status`."
        )

    async def _have_loaded(self, model: str) -> ChatFailed | None:
        wish = Place(model, any_form=True)
        view = self._cluster.view
        # What no disk has, no master can place: the answer need not wait for there to be one.
        guess = place(view, wish)
        if isinstance(guess, Refused) and guess.code == "not_on_disk":
            known = {each.model for _, each in view.instances()}
            known |= {each.name for each in runnable(view)}
            return model_not_found(model, sorted(known), guess)
        logger.info("{} is asked for and not loaded: asking the master to place it", model)
        reply = await self._ask(wish)
        if isinstance(reply, Refused):
            return refusal(reply)
        with trio.move_on_after(SHOWN_WITHIN_S):
            await self._cluster.wait_until(lambda _: not self._is_unloaded(model))
        return None

    def _choose(self, model: str) -> DecodeChoice | Refusal:
        return choose_decode(self._cluster.view, model, self._cluster.peer_id)

    def _is_unloaded(self, model: str) -> bool:
        choice = self._choose(model)
        return isinstance(choice, Refusal) and choice.code in _UNLOADED

    async def _watch(self, model: str, emit: Emit) -> None:
        """Tell how far loading is, and return when that has changed or been so for a while."""
        before = self._loading(model)
        if before is None:
            return
        await emit(before)
        with trio.move_on_after(TELL_EVERY_S):
            await self._cluster.wait_until(lambda _: self._loading(model) != before)

    def _loading(self, model: str) -> ChatLoading | None:
        base = base_model(model)
        for node, instance in self._cluster.view.instances():
            decodes = instance.state == "loading" and "decode" in instance.roles
            if decodes and (instance.model == model or instance.base_model == base):
                progress = instance.progress
                return ChatLoading(instance.model, node.host, instance.engine, progress)
        return None
