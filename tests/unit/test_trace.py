"""What strace writes, read as calls."""

from tests.faults.trace import parse

TWO_PARTS = """\
7 sendto(7<socket:[3]>, "PATCH /apis/"..., 658, 0, NULL, 0 <unfinished ...>
8 sendto(3<socket:[4]>, "x", 1, 0, NULL, 0) = 1
7 <... sendto resumed>)                   = -1 ENOSPC (No space left on device) (INJECTED)
7 close(7<socket:[3]>)                    = 0
"""


def test_a_call_between_whose_parts_another_process_wrote_is_one_call_with_its_result() -> None:
    calls = parse(TWO_PARTS)
    assert [call.point for call in calls] == ["sendto:1", "close:1"]
    assert "ENOSPC" in calls[0].result and "INJECTED" in calls[0].result
    assert calls[0].path == "socket:[3]" and calls[0].text.endswith("0, NULL, 0")


def test_a_call_that_never_came_back_is_a_call_without_a_result() -> None:
    calls = parse('7 write(1<pipe:[3]>, "{}", 2 <unfinished ...>\n7 +++ killed by SIGKILL +++\n')
    assert [(call.point, call.result) for call in calls] == [("write:1", "?")]


def test_what_other_processes_did_is_left_out_and_not_counted() -> None:
    calls = parse("7 close(3) = 0\n8 close(4) = 0\n7 close(5) = -1 EBADF (Bad file descriptor)\n")
    assert [(call.point, call.text) for call in calls] == [("close:1", "3"), ("close:2", "5")]


def test_a_call_knows_how_many_pages_of_the_list_of_mounts_were_read_before_it() -> None:
    page = '7 read(5</proc/7/mountinfo>, "22 1 0:21"..., 65536) = 4048\n'
    calls = parse(f'7 read(4</a>, "", 9) = 0\n{page}{page}7 read(4</b>, "", 9) = 0\n')
    assert [(call.point, call.pages) for call in calls] == [("read:1", 0), ("read:2", 0), ("read:3", 1), ("read:4", 2)]
