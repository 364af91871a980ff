"""Two sessions joined by lossless pipes: random operations, random splits."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from node.transport.yamux.events import Opened
from node.transport.yamux.flow import StreamState
from node.transport.yamux.frames import INITIAL_WINDOW
from node.transport.yamux.session import Session

SIDES = st.sampled_from([0, 1])
SIZES = st.sampled_from([1, 11, 12, 13, 1000, 70_000, 200_000, 400_000])
MAX_WINDOW = 2 * INITIAL_WINDOW
PATTERN = bytes(i * 7 % 251 for i in range(251)) * 4000


@dataclass
class End:
    """One side's view of a stream, and what the test knows of it."""

    state: StreamState
    sent: int = 0
    received: int = 0
    target: bytearray | None = None


@dataclass
class Side:
    session: Session
    pipe: bytearray = field(default_factory=bytearray)
    ends: dict[int, End] = field(default_factory=dict)


def check(end, data):
    """Assert that `data` is what comes next: every stream carries the same pattern."""
    start = end.received % 251
    assert data == PATTERN[start : start + len(data)]
    end.received += len(data)


class Pair(RuleBasedStateMachine):
    @initialize(max_frame=st.sampled_from([1, 5000, 1 << 20]))
    def set_up(self, max_frame):
        self.max_frame = max_frame
        self.sides = [
            Side(
                Session(
                    initiator=side == 0,
                    max_frame=max_frame,
                    max_window=MAX_WINDOW,
                    max_inbound=3,
                )
            )
            for side in (0, 1)
        ]

    def end(self, side, choice):
        ends = list(self.sides[side].ends.values())
        return ends[choice % len(ends)] if ends else None

    @rule(side=SIDES)
    def open(self, side):
        if len(self.sides[side].ends) < 5:
            state = self.sides[side].session.open()
            self.sides[side].ends[state.stream_id] = End(state)

    @rule(side=SIDES, choice=st.integers(0, 9), size=SIZES)
    def write(self, side, choice, size):
        end = self.end(side, choice)
        if end is not None:
            self.send(side, end, min(size, 50 * self.max_frame))  # small frames are slow

    def send(self, side, end, size):
        session, pipe = self.sides[side].session, self.sides[side].pipe
        while size and end.state.send_window and not self.cannot_send(end):
            header, n = session.data_header(end.state, size)
            start = end.sent % 251
            pipe += session.take_output() + header + PATTERN[start : start + n]
            end.sent += n
            size -= n

    @staticmethod
    def cannot_send(end):
        return end.state.finished_sending or end.state.reset

    @rule(side=SIDES, size=SIZES, direct=st.booleans())
    def deliver(self, side, size, direct):
        """Bring up to `size` of the bytes that `side` has sent to the other side."""
        sender, receiver = self.sides[side], self.sides[1 - side]
        sender.pipe += sender.session.take_output()
        data = memoryview(bytes(sender.pipe[:size]))
        del sender.pipe[:size]
        while data:
            n = self.feed(receiver, data, direct)
            data = data[n:]
        for end in receiver.ends.values():
            assert 0 <= end.state.receive_window <= MAX_WINDOW

    @staticmethod
    def feed(receiver, data, direct):
        """Feed some of `data` to the receiver, to a target if there is one; return how much."""
        session = receiver.session
        if direct:
            for n in (len(data), 65_519, 1000, 1):
                place = session.direct(n) if n <= len(data) else None
                if place is not None:
                    place[:] = data[:n]
                    session.put_direct(n)
                    return n
            data = data[:12]
        for event in session.receive(data):
            if isinstance(event, Opened):
                receiver.ends[event.stream.stream_id] = End(event.stream)
        return len(data)

    @rule(side=SIDES, choice=st.integers(0, 9), size=SIZES)
    def read(self, side, choice, size):
        end = self.end(side, choice)
        if end is not None and end.target is None:
            check(end, self.sides[side].session.take(end.state, size))

    @rule(side=SIDES, choice=st.integers(0, 9), size=SIZES)
    def attach(self, side, choice, size):
        end = self.end(side, choice)
        if end is not None and end.target is None:
            end.target = bytearray(size)
            self.sides[side].session.attach(end.state, memoryview(end.target))

    @rule(side=SIDES, choice=st.integers(0, 9), give_back=st.booleans())
    def detach(self, side, choice, give_back):
        end = self.end(side, choice)
        if end is not None and end.target is not None:
            self.let_go(end, give_back)

    @staticmethod
    def let_go(end, give_back):
        filled = end.state.detach(give_back=give_back)
        if not give_back:
            check(end, bytes(end.target[:filled]))
        end.target = None

    @rule(side=SIDES, choice=st.integers(0, 9))
    def finish(self, side, choice):
        end = self.end(side, choice)
        if end is not None:
            self.sides[side].session.finish(end.state)

    @rule(side=SIDES, choice=st.integers(0, 19))
    def reset(self, side, choice):
        end = self.end(side, choice)
        if end is not None and choice < 10 and end.target is None:
            self.sides[side].session.reset(end.state)

    @precondition(lambda self: hasattr(self, "sides"))
    @rule(side=SIDES)
    def ping(self, side):
        self.sides[side].session.ping(3)

    def teardown(self):
        """Everything written arrives, and what is left of every window suffices to go on."""
        if not hasattr(self, "sides"):
            return
        for side in self.sides:
            for end in side.ends.values():
                if end.target is not None:
                    self.let_go(end, give_back=True)
        self.settle()
        self.move_more_than_a_window()
        for number, side in enumerate(self.sides):
            for stream_id, end in side.ends.items():
                other = self.sides[1 - number].ends.get(stream_id)
                if other is None or end.state.reset or other.state.reset:
                    assert end.state.reset or end.state.stream_id not in side.session.streams
                    continue
                assert end.received == other.sent
                side.session.finish(end.state)
        self.settle()
        for side in self.sides:
            assert side.session.streams == {}
            assert not side.session.has_output

    def settle(self, direct=False):
        """Bring everything over and read it, into targets if `direct`."""
        while any(side.pipe or side.session.has_output for side in self.sides):
            for number in (0, 1):
                if direct:
                    self.attach_everywhere()
                self.deliver(number, 1 << 30, direct)
                for side in self.sides:
                    for end in side.ends.values():
                        if end.target is not None:
                            self.let_go(end, give_back=False)
                        check(end, side.session.take(end.state))

    def attach_everywhere(self):
        for side in self.sides:
            for end in side.ends.values():
                end.target = bytearray(200_000)
                side.session.attach(end.state, memoryview(end.target))

    def move_more_than_a_window(self):
        for number, side in enumerate(self.sides):
            for end in list(side.ends.values())[:3]:
                goal = end.sent + (50 if self.max_frame == 1 else MAX_WINDOW + INITIAL_WINDOW)
                while end.sent < goal and not self.cannot_send(end):
                    before = end.sent
                    self.send(number, end, goal - end.sent)
                    self.settle(direct=True)
                    assert end.sent > before or self.cannot_send(end)


Pair.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPair = Pair.TestCase
