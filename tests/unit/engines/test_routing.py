"""Which server a call goes to, and what is left of it on the next."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from polar.engines import SampleRequest
from polar.engines.servers.member import Member
from polar.engines.servers.routing import choose, ended, rest_of
from polar.types import Sampling


@dataclass
class Server:
    address: str


def members(count):
    return [Member(Server(f"http://10.0.0.{n}")) for n in range(count)]


@given(st.lists(st.text(min_size=1), max_size=20), st.integers(2, 6), st.data())
def test_a_server_that_leaves_moves_its_own_sessions_only(sessions, count, data):
    able = members(count)
    lost = data.draw(st.sampled_from(able))
    left = [member for member in able if member is not lost]
    for session in sessions:
        before = choose(session, able)
        assert before is lost or choose(session, left) is before


def test_every_server_gets_a_share_of_the_sessions():
    able = members(4)
    chosen = [choose(f"session {n}", able).address for n in range(4000)]
    assert all(800 < chosen.count(member.address) < 1200 for member in able)


def test_the_order_in_which_servers_are_named_does_not_matter():
    able = members(5)
    for session in map(str, range(50)):
        assert choose(session, able) is choose(session, able[::-1])


def test_a_call_of_no_session_goes_to_the_idlest_server():
    able = members(3)
    able[0].streams, able[1].streams, able[2].streams = 2, 1, 3
    assert choose("", able) is able[1]


def test_the_rest_of_a_reply_is_asked_for_after_the_tokens_given():
    asked = SampleRequest((1, 2), Sampling(max_tokens=9, seed=4, temperature=0.5), affinity="s")
    rest = rest_of(asked, (3, 4))
    assert rest.prompt_ids == (1, 2, 3, 4)
    assert rest.sampling.max_tokens == 7
    assert rest.sampling.temperature == 0.5
    assert rest.affinity == "s"


def test_the_rest_of_a_seeded_reply_is_not_sampled_by_the_same_random_numbers():
    asked = SampleRequest((1,), Sampling(seed=4))
    seeds = [rest_of(asked, (2,) * count).sampling.seed for count in range(4)]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rest_of(asked, (2,)) == rest_of(asked, (2,))


def test_a_reply_is_over_at_its_stop_token_its_limit_or_the_end_of_the_window():
    asked = SampleRequest((1, 2), Sampling(max_tokens=3, stop_token_ids=(9,)))
    assert ended(asked, (), 100) is None
    assert ended(asked, (5, 9), 100) == "stop"
    assert ended(asked, (9, 5), 100) is None
    assert ended(asked, (5, 5, 5), 100) == "length"
    assert ended(SampleRequest((1, 2), Sampling()), (5, 5), 4) == "length"
    assert ended(SampleRequest((1, 2), Sampling()), (5,), 4) is None
